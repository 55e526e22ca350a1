"""All uses of torch's private API, one module per subject. No other package may use it.

May import: validation, garbage_collector, threads.
"""
