"""Records a forward and builds its graph: `ts.capture`, `ts.graph`.

May import: hips, graph, torch_private, validation, garbage_collector.
"""
