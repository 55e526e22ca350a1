"""costly history"""
