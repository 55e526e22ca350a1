"""modified in place"""
