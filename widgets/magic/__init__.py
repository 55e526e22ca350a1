"""IPython's magics.

May import: engine, inspector, terminal, deck.
"""
