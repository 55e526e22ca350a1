"""Gradients that are all zero, step after step."""
