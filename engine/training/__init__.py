"""A whole training loop, watched while it runs: leaks, silent errors, norms, what led to a bad step.

May import: inspector, words, memory, measuring, prediction, tasks, trace, stops, sessions, programs, steps, exports,
norms, finding, black_box.
"""
