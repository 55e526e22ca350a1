"""Ready models and programs.

May import: inspector, hips.
"""

from ...moved import of_old_module

__getattr__ = of_old_module(__name__)
