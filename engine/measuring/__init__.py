"""What the allocator did, attributed to tasks; footprints calibrated from it.

May import: inspector, memory, tasks, prediction, words.
"""
