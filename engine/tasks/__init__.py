"""One task, run from Python by the rules of PyTorch's engine (engine.cpp).

May import: inspector, words, queue, memory.
"""
