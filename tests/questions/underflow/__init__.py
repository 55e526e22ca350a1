"""underflow"""
