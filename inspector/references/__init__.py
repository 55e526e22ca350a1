"""Search for references that keep an object alive, reported as readable expressions.

May import: graph, torch_private.
"""
