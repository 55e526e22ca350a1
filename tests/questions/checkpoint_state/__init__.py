"""checkpoint state"""
