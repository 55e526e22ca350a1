"""wrong backward"""
