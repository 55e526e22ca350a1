"""never cleared"""
