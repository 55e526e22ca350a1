"""The graph as data: tasks, edges, what nodes saved, and its file.

May import: torch_internals.
"""
