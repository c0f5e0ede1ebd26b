"""broker.store"""
