"""Tapes of HIPS autograd, read as graphs.

May import: arguments, torch_internals, graph.
"""
