"""Everything of torch that is private, by subject, and nowhere else.

tests/inspector/test_torch_internals.py checks each function's promise, so that a torch release which changes one fails
there. May import: arguments, threads.
"""
