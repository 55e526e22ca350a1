"""The kinds of programs, by topic."""

from __future__ import annotations

from importlib import import_module

from program import KINDS

TOPICS: dict[str, list[str]] = {}
"""The kinds of each topic, by name."""

for _topic in ("models", "layouts", "graphs", "functions", "hooks", "transforms", "surroundings", "distributed"):
    _known = set(KINDS)
    import_module(f"kinds.{_topic}")
    TOPICS[_topic] = [name for name in KINDS if name not in _known]
