"""Columns as a pandas.DataFrame. pandas is asked for only here, and only when somebody wants one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def pandas_itself() -> Any:
    """The module.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        import pandas  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "to_pandas() makes a pandas.DataFrame: pip install 'tapescope[notebook]', or pip install pandas"
        ) from error
    return pandas


def frame_of(columns: Mapping[str, Sequence[Any]], integers: Sequence[str] = ()) -> Any:
    """A table of these columns. `integers`: those in which a number may be missing, which then stay integers."""
    pandas = pandas_itself()
    frame = pandas.DataFrame({name: list(column) for name, column in columns.items()})
    return frame.astype({name: "Int64" for name in integers if name in columns})
