"""The deck: its document, its words, and in `live` the session behind it.

May import: inspector, engine, pages.
"""

from ...moved import of_old_module

__getattr__ = of_old_module(__name__)
