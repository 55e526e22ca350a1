"""The verbs that start a backward on a loss or a make_loss.

May import: inspector, words, queue, memory, tasks, measuring, trace, orders, hips, batching, sessions.
"""
