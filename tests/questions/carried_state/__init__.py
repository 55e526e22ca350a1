"""carried state"""
