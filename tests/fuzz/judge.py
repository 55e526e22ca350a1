"""The results that must be equal after a step run by tapescope and one run by PyTorch."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from comparing import assert_equal
from recipe import Forward, Recipe, World
from torch import Tensor
from ways import Way, plain

from tapescope.engine.schedule.ready_queue import PolicyError
from tapescope.inspector.torch_private.sequence_numbers import pins_open

REFUSALS = (NotImplementedError, PolicyError)
NOT_BACK = "can be undone"


@dataclass(eq=False)
class Outcome:
    """The results of two steps of a program.

    Attributes:
        error: what the first raised.
        again: what a second backward over the same graph raised.
    """

    error: Exception | None = None
    again: str | None = None
    grads: list[Tensor | None] = field(default_factory=list)
    retained: list[Tensor | None] = field(default_factory=list)
    next_grads: list[Tensor | None] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)
    random_state: Tensor | None = None
    log: list[tuple[str, Any]] = field(default_factory=list)


def outcome(recipe: Recipe, step: Callable[[World], Forward]) -> Outcome:
    """Runs one step as `step` does, then PyTorch's own second backward of the same graph, and its own next step."""
    found, world = Outcome(), World(recipe)
    try:
        forward = step(world)
    except Exception as error:
        found.error = error
        world.close()
        return found
    found.log = list(world.log)
    found.random_state = torch.get_rng_state()
    found.grads = _taken(forward.leaves)
    found.buffers = [each.clone() for each in world.modules.buffers()]
    try:
        torch.autograd.backward(forward.roots, forward.gradients)
    except Exception as error:
        found.again = f"{type(error).__name__}: {str(error)[:60]}"
    world.close()
    torch.manual_seed(recipe.seed)
    _taken(forward.leaves)
    found.next_grads = _taken(plain(world).leaves)
    world.close()
    return found


def _taken(leaves: list[Tensor]) -> list[Tensor | None]:
    grads = [None if leaf.grad is None else leaf.grad.detach().clone() for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return grads


def verdict(recipe: Recipe, way: Way) -> str:
    """ "equal", "refused: ...", "raises as PyTorch does", or what differs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = outcome(recipe, plain)
        found = outcome(recipe, way.run)
    if pins_open():
        return "DIFFERENT: sequence numbers are left pinned"
    refused = isinstance(found.error, REFUSALS) or NOT_BACK in str(found.error)
    if refused and expected.error is None:
        return f"refused: {type(found.error).__name__}: {str(found.error).splitlines()[0][:100]}"
    if (found.error is None) != (expected.error is None):
        return f"DIFFERENT: {found.error!r:.300} is raised, by PyTorch {expected.error!r:.300}"
    if found.error is not None:
        return "raises as PyTorch does"
    differences = list(_differences(found, expected, way.is_pytorchs))
    return "DIFFERENT: " + "; ".join(differences) if differences else "equal"


def _differences(found: Outcome, expected: Outcome, bitwise: bool) -> list[str]:
    said = []
    for what in ("grads", "next_grads", "buffers"):
        exact = bitwise or what != "grads"
        try:
            assert_equal(getattr(found, what), getattr(expected, what), exact)
        except AssertionError as error:
            said.append(f"{what} {str(error)[:80]!r}")
    if not torch.equal(found.random_state, expected.random_state):
        said.append("the state of the random number generator")
    if found.again != expected.again:
        said.append(f"a second backward: {found.again}, by PyTorch {expected.again}")
    names = [[name for name, _ in each.log] for each in (found, expected)]
    if (names[0] != names[1]) if bitwise else (Counter(names[0]) != Counter(names[1])):
        said.append(f"hooks called: {names[0][:6]} ..., by PyTorch {names[1][:6]} ...")
    elif bitwise:
        said += [
            f"what hook {name} got"
            for (name, told), (_, other) in zip(found.log, expected.log, strict=True)
            if not _same(told, other)
        ]
    return said


def _same(told: list[Tensor | None], other: list[Tensor | None]) -> bool:
    return len(told) == len(other) and all(
        one is two is None or (one is not None and two is not None and torch.equal(one, two))
        for one, two in zip(told, other, strict=True)
    )
