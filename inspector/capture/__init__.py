"""Record a forward and build its graph: `ts.capture`, `ts.graph`.

May import: hips, graph, torch_private, validation, garbage_collector, renderers.
"""
