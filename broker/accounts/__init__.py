"""broker.accounts"""
