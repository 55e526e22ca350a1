"""retained graph"""
