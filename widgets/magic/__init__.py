"""IPython's magics.

May import: inspector, engine, deck, terminal.
"""
