"""Tapes of HIPS autograd, read as graphs.

May import: torch_internals, graph.
"""
