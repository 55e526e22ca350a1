"""The deck: its document, the live session behind it, its words.

May import: pages.
"""
