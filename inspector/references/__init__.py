"""What holds an object that is alive, as an expression that a user can read.

May import: graph, torch_private.
"""
