"""How numbers, lists and findings are worded.

May import: inspector.
"""
