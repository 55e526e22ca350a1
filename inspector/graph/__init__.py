"""The graph as data: tasks, edges, what nodes saved, and its file.

May import: arguments, torch_internals, shown.
"""
