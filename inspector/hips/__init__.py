"""Tapes of the autograd package (HIPS), converted to graphs.

May import: graph, torch_private, validation.
"""
