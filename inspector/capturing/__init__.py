"""What a forward leaves is watched and read: `th.capture`, `th.graph`.

May import: arguments, torch_internals, graph, tapes.
"""
