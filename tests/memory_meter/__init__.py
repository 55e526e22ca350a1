"""Holds the figures of memory that verbs give against allocations counted below torch: `python tests/memory_meter`."""
