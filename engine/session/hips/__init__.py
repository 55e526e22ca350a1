"""Backwards of the package autograd (HIPS): running, summing and measuring them."""
