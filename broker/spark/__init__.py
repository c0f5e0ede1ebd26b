"""broker.spark"""
