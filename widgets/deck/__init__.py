"""The deck: its widget, its page's data, and the live session behind it.

May import: engine, inspector, pages.
"""
