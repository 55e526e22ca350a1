"""sum of parts"""
