"""broker.wire"""
