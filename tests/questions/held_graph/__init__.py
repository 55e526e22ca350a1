"""held graph"""
