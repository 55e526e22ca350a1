"""Graphs as pictures: folding, layout, SVG, DOT and JSON.

May import: graph, text, renderers, garbage_collector.
"""
