"""held views"""
