"""create graph"""
