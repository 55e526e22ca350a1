"""The terminal prompt and its commands.

May import: engine, inspector, deck.
"""
