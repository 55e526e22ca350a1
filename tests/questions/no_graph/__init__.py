"""no graph"""
