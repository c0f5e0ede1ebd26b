"""broker.cli"""
