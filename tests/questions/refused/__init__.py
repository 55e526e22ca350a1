"""refused"""
