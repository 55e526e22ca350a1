"""The terminal's prompt, and what it runs.

May import: inspector, engine, deck.
"""
