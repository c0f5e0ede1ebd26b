"""broker.cluster"""
