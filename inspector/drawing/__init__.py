"""Graphs as pictures: folding, layout, SVG, DOT and JSON.

May import: torch_internals, graph.
"""
