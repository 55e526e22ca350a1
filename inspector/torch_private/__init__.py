"""Access to private parts of torch, grouped by subject. No other package uses private names of torch.

May import: validation, garbage_collector, threads.
"""
