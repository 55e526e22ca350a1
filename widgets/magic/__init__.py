"""IPython's magics.

May import: inspector, engine, pages, deck, terminal.
"""
