"""What a forward leaves is watched and read: `th.capture`, `th.graph`.

May import: torch_internals, graph, tapes.
"""
