"""Who holds an object that is alive, as an expression that a user can read.

May import: torch_internals, graph.
"""
