"""How numbers, lists and findings are worded; which widget draws which result (shown.py).

May import: inspector.
"""
