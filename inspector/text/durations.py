"""Durations as text."""

from __future__ import annotations

_TIME_UNITS = ((1e3, 1.0, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms"), (float("inf"), 1e9, "s"))


def time_unit(elapsed_ns: float) -> tuple[float, str]:
    """Return the unit for printing a time: its length in nanoseconds and its name."""
    return next((scale, unit) for below, scale, unit in _TIME_UNITS if elapsed_ns < 0.9995 * below)


def time_text(elapsed_ns: float) -> str:
    """`812 ns`, `9.87 µs`, `8.10 ms`, `1.24 s`: three digits."""
    scale, unit = time_unit(elapsed_ns)
    value = elapsed_ns / scale
    digits = 0 if unit == "ns" else 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def created_text(created_ns: int) -> str:
    """Return `created 3.20 ms into the forward`, from `Task.created_ns`."""
    return f"created {time_text(created_ns)} into the forward"
