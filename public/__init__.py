"""The namespaces `ts.types`, `ts.orders`, `ts.hips` and `ts.studies`, and modules whose names load lazily."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ..errors import missing_in_torch, public_object

_ROOT = __name__.partition(".")[0]


def lazy_names(module: str, module_of: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a module.

    Args:
        module: the module's name.
        module_of: the defining module of each public name, such as "engine.api.profile", or
            "inspector.hips.tape:hips_tape" if the object has another name there.
    """

    def get(name: str) -> Any:
        if name not in module_of:
            me = sys.modules[module]  # Python suggests a similar name from it
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=me)
        from ..inspector.garbage_collector import collector_paused

        place, _, its_name = module_of[name].partition(":")
        try:
            with collector_paused():  # a collection would visit all of torch's objects: a fifth of the time
                found = getattr(import_module(f"{_ROOT}.{place}"), its_name or name)
            found = public_object(found, module.replace(".public.", "."), name)
        except (AttributeError, ImportError) as error:
            if (sentence := missing_in_torch(error)) is not None:
                raise RuntimeError(sentence) from error
            raise
        setattr(sys.modules[module], name, found)
        return found

    def names() -> list[str]:
        special = [name for name in vars(sys.modules[module]) if name.startswith("__")]
        return sorted({*module_of, *special})

    return get, names
