"""The ways in which tapescope may run a step of a program, each of which must do what PyTorch does."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from backward_programs import random_policy
from recipe import Forward, World
from recomputed_programs import everything
from torch import Tensor

import tapescope as ts
from tapescope.engine.recompute.record_forward import record_forward
from tapescope.engine.session.direct_session import Stepper

POLICIES = ("heap", "heap", "bfs", "dfs", "lpmf", "postorder", "liu", "random")


@dataclass(frozen=True)
class Way:
    """A way to run a step.

    Attributes:
        name: which of WAYS.
        policy: in which order.
    """

    name: str
    policy: str

    @classmethod
    def of(cls, seed: int) -> Way:
        chance = random.Random(~seed)
        return cls(chance.choice(list(WAYS)), chance.choice(POLICIES))

    @property
    def is_pytorchs(self) -> bool:
        """Return whether the order is PyTorch's, so that gradients must be equal bit for bit."""
        return self.policy == "heap"

    def run(self, world: World) -> Forward:
        seed = world.recipe.seed
        policy = random_policy(seed) if self.policy == "random" else self.policy
        return WAYS[self.name](world, policy, random.Random(seed + 2))


def plain(world: World) -> Forward:
    """PyTorch's own."""
    forward = world.forward()
    torch.autograd.backward(forward.roots, forward.gradients, **forward.options)
    return forward


def native(world: World, policy: Any, chance: random.Random) -> Forward:
    forward = world.forward()
    ts.backward(forward.roots, forward.gradients, policy=policy, engine="native", **forward.options)
    return forward


def direct(world: World, policy: Any, chance: random.Random) -> Forward:
    forward = world.forward()
    ts.backward(forward.roots, forward.gradients, policy=policy, engine="direct", **forward.options)
    return forward


def stepped(world: World, policy: Any, chance: random.Random) -> Forward:
    """A session with a history, that is left for another policy, goes on and runs to its end."""
    forward = world.forward()
    with Stepper(forward.call, policy=policy, history=True) as session:
        for _ in range(chance.randint(0, 5)):
            if session.left:
                session.step()
        session.run()
    return forward


def taken_back(world: World, policy: Any, chance: random.Random) -> Forward:
    """Undo all tasks to the start, from branches too, and run them again: hooks are called twice."""
    forward = world.forward()
    with Stepper(forward.call, policy="bfs", history=True) as session:
        before = len(world.log)
        for _ in range(chance.randint(1, 3)):
            for _ in range(chance.randint(1, 9)):
                if session.left:
                    session.step(chance.choice(session.ready))
            if session.order:
                session.back(chance.randint(1, len(session.order)))
        if session.order:
            session.back(len(session.order))
        del world.log[before:]
        session.policy = policy
        session.run()
    return forward


def stepped_natively(world: World, policy: Any, chance: random.Random) -> Forward:
    forward = world.forward()
    with ts.types.NativeSession(forward.call, policy=policy) as session:
        for _ in range(chance.randint(0, 5)):
            if session.left:
                session.step()
        session.run()
    return forward


def predicted(world: World, policy: Any, chance: random.Random) -> Forward:
    """Request predictions, which must not change the backward that follows."""
    forward = world.forward()
    graph = ts.graph(forward.roots)
    ts.simulate(graph, "bfs")
    ts.plan_order(graph, ["heap", "bfs"])
    ts.find_batches(graph)
    ts.backward(forward.roots, forward.gradients, policy=policy, engine="native", **forward.options)
    return forward


def recomputed(world: World, policy: Any, chance: random.Random) -> Forward:
    """Drop every storage that can be recomputed. Recording the forward leaves nothing behind."""
    found: list[Forward] = []

    def make_loss() -> Tensor:
        found[:] = [world.forward()]
        return found[0].roots[0]

    plan = everything(record_forward(make_loss, 1))
    assert not found, "ts.record_forward has not put back a list of the program's"
    with ts.recompute(plan):
        make_loss()
    (forward,) = found
    ts.backward(forward.roots, forward.gradients, policy=policy, engine="native", **forward.options)
    return forward


WAYS: dict[str, Callable[[World, Any, random.Random], Forward]] = {
    "native": native,
    "direct": direct,
    "stepped": stepped,
    "taken back": taken_back,
    "stepped natively": stepped_natively,
    "predicted": predicted,
    "recomputed": recomputed,
}
