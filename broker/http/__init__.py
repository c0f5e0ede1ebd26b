"""broker.http"""
