"""hook and in place"""
