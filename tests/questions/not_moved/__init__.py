"""not moved"""
