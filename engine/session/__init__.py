"""Sessions, which run a backward step by step in either engine: step, break, watch, edit, check, undo, branch.

May import: inspector, planning, recording, memory, execution, schedule.
"""
