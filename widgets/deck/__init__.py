"""The deck: its document, its words, and in `live` the session behind it.

May import: inspector, engine, pages.
"""
