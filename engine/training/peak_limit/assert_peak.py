"""`ts.assert_peak`: a limit on the memory of a training step, checked on fake tensors, and its comparison with an
earlier peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ....inspector.text.sizes_and_counts import SIZES, both_units, bytes_of, percent_text, refuse_bare_size, size_text
from ....inspector.validation import expect_callable, expect_number
from ...execution.unsupported import refuse_transforms
from ...memory.estimates import Estimate
from ..fits import named_device
from .simulated_function import MakeOptimizer, Part, SimulatedFunction, simulate_function

_MOST_PARTS = 6  # in a message

NOT_COUNTED = Estimate("workspaces of kernels, the context of a GPU and fragmentation are not counted", "at least")
"""The reason why a peak predicted by `simulate_function` is an estimate."""

StoredPart = Mapping[str, Any]
"""A part of a stored peak: `bytes`, `kinds` and `line`."""


def assert_peak(
    make_loss: Callable[[], Tensor | tuple[Tensor, Any]],
    limit: str | int,
    *,
    optimizer: MakeOptimizer | None = None,
    device: torch.device | str = "cuda",
) -> int:
    """Assert that a forward and backward, or a training step, needs at most this much memory.

    The step runs on fake tensors: nothing of the model is allocated, and no accelerator is needed. Workspaces of
    kernels, the CUDA context and fragmentation are not predicted, so leave room for them.

    Args:
        make_loss: a function that makes the model and the batch, runs the forward, and returns the loss, or a pair of
            the loss and the model.
        limit: the bytes, as a number, or as "2GB" (10⁹) or "2GiB" (2³⁰).
        optimizer: a function of a list of parameters, such as `torch.optim.AdamW`. The step is then a steady one, in
            which the optimizer already has its state. None: only forward and backward are run.
        device: the device whose allocator and optimizer implementation are assumed.

    Returns:
        The predicted peak in bytes.

    Raises:
        AssertionError: the peak exceeds the limit. The message lists the largest modules at the peak, with lines.
        NotImplementedError: the program reads a number from a tensor (`.item()`), or runs an operation that fake
            tensors do not support.
        TypeError, ValueError: an argument has a wrong type or value.
        Exception: errors of the program.
    """
    expect_callable(make_loss, 0, "make_loss", "a function that returns the loss")
    if optimizer is not None:
        expect_callable(optimizer, 1, "optimizer", "a function that takes parameters and makes an optimizer")
    most = limit_of(limit)
    refuse_transforms("ts.assert_peak")
    simulated = simulate_function(make_loss, "ts.assert_peak", str(named_device(device)), optimizer, has_loss=True)
    if simulated.peak_bytes > most:
        raise AssertionError(over_limit(simulated, most))
    return simulated.peak_bytes


def limit_of(limit: str | int) -> int:
    """Return a limit in bytes.

    Raises:
        TypeError, ValueError: it is not a size.
    """
    wanted = "a number of bytes above 0"
    if isinstance(limit, str):
        return bytes_of(limit, "limit", wanted)
    expect_number(limit, int, "limit", f"{wanted}, or a size {SIZES}")
    refuse_bare_size(limit, "limit")
    if limit <= 0:
        raise ValueError(f"limit is {limit}; expected {wanted}, or a size {SIZES}")
    return int(limit)


def over_limit(simulated: SimulatedFunction, limit: int) -> str:
    """Return a message about a peak above its limit: the phase, and the largest modules."""
    peak = simulated.timeline.peak_phase.name
    lines = [
        f"the predicted peak, {both_units(simulated.peak_bytes)} in the {peak}, exceeds {both_units(limit)}; largest:"
    ]
    lines += [f"  {path or 'outside of submodules'}: {part}" for path, part in [*simulated.parts.items()][:_MOST_PARTS]]
    return "\n".join(lines)


def stored_parts(parts: Mapping[str, Part]) -> dict[str, StoredPart]:
    """Return the parts of a peak as JSON content."""
    return {path: {"bytes": each.nbytes, "kinds": dict(each.kinds), "line": each.line} for path, each in parts.items()}


def growth(before: Mapping[str, StoredPart], simulated: SimulatedFunction) -> list[str]:
    """Return the modules that need more memory at the peak than before, the largest growth first.

    A module that did not exist before is named once, with all modules in it.
    """
    known = {each for path in before for each in _prefixes(path)}
    grown: Counter[str] = Counter()
    kinds: dict[str, Counter[str]] = {}
    lines: dict[str, tuple[int, str]] = {}
    for path, part in simulated.parts.items():
        # The outermost module that did not exist before stands for those in it.
        name = next((each for each in _prefixes(path) if each not in known), path)
        old = before.get(path, {"bytes": 0, "kinds": {}})
        grown[name] += part.nbytes - old["bytes"]
        kinds.setdefault(name, Counter()).update(part.kinds)
        kinds[name].subtract(old["kinds"])
        lines[name] = max(lines.get(name, (0, "")), (part.nbytes, part.line))
    said = []
    for name, more in grown.most_common():
        if more > 0:
            of = ", ".join(f"{kind} +{size_text(n)}" for kind, n in kinds[name].most_common() if n > 0)
            new = "" if name in known else " (new)"
            line = f" at {lines[name][1]}" if lines[name][1] else ""
            said.append(f"  {name or 'outside of submodules'}{new}: +{size_text(more)} ({of}){line}")
    return said[:_MOST_PARTS]


def _prefixes(path: str) -> list[str]:
    """Return the modules around a module, and itself: `h`, `h.2`, `h.2.attn`."""
    parts = path.split(".")
    return [".".join(parts[: place + 1]) for place in range(len(parts))]


def over_baseline(before: int, after: int, grown: list[str]) -> str:
    """Return a message about a peak above its baseline."""
    more = percent_text(after / before - 1)
    lines = [f"the peak grew from {size_text(before)} to {size_text(after)} ({more})", *grown]
    return "\n".join([*lines, "if this is intended, store the new peak with --tapescope-update"])
