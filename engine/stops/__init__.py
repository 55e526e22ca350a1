"""What stops a run: breakpoints, watchpoints, where a bad value came from.

May import: inspector, words, queue, trace.
"""

from ...moved import of_old_module

__getattr__ = of_old_module(__name__)
