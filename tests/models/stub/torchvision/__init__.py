"""Stands for torchvision, which would bring a CUDA build of torch: what timm imports of it, and its models don't use.

On the path while timm's models run here; it is never installed.
"""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType
from typing import Any

from torch import nn


class _Unused(type):
    """The class of classes with any name, which have members with any name."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unused(name, (), {})


class _Module(ModuleType):
    __path__: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unused(name, (), {})


class FrozenBatchNorm2d(nn.Module):
    """timm asks whether a layer is one."""


for _name in ("datasets", "ops", "ops.misc", "transforms", "transforms.functional"):
    _module = _Module(f"{__name__}.{_name}")
    _module.__spec__ = importlib.machinery.ModuleSpec(_module.__name__, None)
    sys.modules[_module.__name__] = _module
    _parent, _, _last = _module.__name__.rpartition(".")
    setattr(sys.modules[_parent], _last, _module)
sys.modules[f"{__name__}.ops.misc"].FrozenBatchNorm2d = FrozenBatchNorm2d  # type: ignore[attr-defined]
