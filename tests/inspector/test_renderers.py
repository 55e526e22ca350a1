"""The table of what draws which result leads somewhere, row by row."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tapescope.inspector.renderers import DRAWN_BY


@pytest.mark.parametrize("what", DRAWN_BY)
def test_each_row_names_a_function_that_is_there(what: str) -> None:
    module, _, name = DRAWN_BY[what].partition(":")
    spec = find_spec(f"tapescope.{module}")
    assert spec is not None and spec.origin is not None
    with open(spec.origin, encoding="utf-8") as source:
        assert f"\ndef {name}(" in (text := source.read()) or f"\nclass {name}(" in text or f"\n{name} = " in text
