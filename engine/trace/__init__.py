"""What happened in one backward: records, statistics, its file, its peak explained.

May import: inspector, words, queue, memory, tasks.
"""

from ...moved import of_old_module

__getattr__ = of_old_module(__name__)
