"""The graph as data: tasks, edges, saved tensors, source lines, and its file.

May import: text, torch_private, renderers, files, validation, garbage_collector.
"""
