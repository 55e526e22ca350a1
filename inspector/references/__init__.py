"""Find what holds a living object, as an expression that a user can read.

May import: graph, torch_private.
"""
