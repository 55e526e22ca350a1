"""second backward"""
