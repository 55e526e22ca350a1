"""zero gradient"""
