"""The graph as data: tasks, edges, what nodes saved, and its file.

May import: arguments, torch_internals, shown.
"""

from ...moved import of_old_module

__getattr__ = of_old_module(__name__)
