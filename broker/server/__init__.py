"""broker.server"""
