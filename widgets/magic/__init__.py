"""IPython's magics.

May import: pages, deck, terminal.
"""
