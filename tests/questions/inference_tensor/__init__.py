"""inference tensor"""
