"""The terminal's prompt, and what it runs.

May import: pages, deck.
"""
