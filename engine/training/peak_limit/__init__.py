"""Limits on the peak memory of a training step, which is predicted on fake tensors, and its growth by module.

May import: inspector, api, memory, execution, and the modules of training.
"""
