"""sparse gradient"""
