"""clipped nothing"""
