"""Backwards of the autograd package (HIPS): sessions, accumulation and memory."""
