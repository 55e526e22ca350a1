"""not stepped"""
