"""held values"""
