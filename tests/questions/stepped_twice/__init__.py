"""stepped twice"""
