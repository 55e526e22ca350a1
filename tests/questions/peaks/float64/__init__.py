"""float64"""
