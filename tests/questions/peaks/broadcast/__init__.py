"""broadcast"""
