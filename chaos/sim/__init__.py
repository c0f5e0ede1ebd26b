"""chaos.sim"""
