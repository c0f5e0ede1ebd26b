"""broker.config"""
