"""broker.scan"""
