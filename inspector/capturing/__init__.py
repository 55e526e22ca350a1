"""What a forward leaves is watched and read: `ts.capture`, `ts.graph`.

May import: arguments, torch_internals, graph, tapes.
"""
