"""The terminal's prompt, and its commands.

May import: engine, inspector, deck.
"""
