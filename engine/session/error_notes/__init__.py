"""Notes on PyTorch's own errors: the tensor, the module and the line that cause one, and the remedy.

May import: inspector, memory, execution.
"""
