"""forward variables"""
