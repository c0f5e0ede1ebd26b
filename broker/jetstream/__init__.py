"""broker.jetstream"""
