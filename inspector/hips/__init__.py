"""Tapes of the package autograd (HIPS), read as graphs.

May import: graph, torch_private, validation.
"""
