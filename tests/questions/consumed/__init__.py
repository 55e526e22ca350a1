"""consumed"""
