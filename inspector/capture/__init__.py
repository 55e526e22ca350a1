"""Recording of a forward and construction of its graph: `ts.capture`, `ts.graph`.

May import: hips, graph, torch_private, validation, garbage_collector.
"""
