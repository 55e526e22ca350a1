"""Everything private of torch that tapescope uses, by subject, and nowhere else.

May import: validation, garbage_collector, threads.
"""
