"""broker.subjects"""
