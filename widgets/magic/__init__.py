"""The IPython magics `%tapescope` and `%%tapescope`.

May import: engine, inspector, terminal, deck.
"""
