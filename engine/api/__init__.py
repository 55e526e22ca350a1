"""The functions that run a user's loss (backward, debug, profile, set_policy), and the restoring of its state.

May import: inspector, session, planning, recording, memory, execution, schedule.
"""
