"""The deck: its document, the live session behind it, its words.

May import: inspector, engine, pages.
"""

from ...moved import of_old_module

__getattr__ = of_old_module(__name__)
