"""Public verbs that are asked for a prediction or a finding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from torch import Tensor

import tapehead as th

from .programs import Program

ORDERS = ["bfs", "heap", "lpmf"]


def simulate(loss: Tensor) -> object:
    graph = th.graph(loss)
    return [th.simulate(graph, order) for order in ORDERS]


def plan(loss: Tensor) -> object:
    return th.plan(loss, seconds=0.02)


def auto(loss: Tensor) -> object:
    return th.simulate(th.graph(loss), "auto")


def peak_report(loss: Tensor) -> object:
    return th.peak_report(th.simulate(th.graph(loss))).hints


def structure(loss: Tensor) -> object:
    graph = th.graph(loss)
    return graph.saved, graph.to_svg(), th.groups(graph)


def orders(loss: Tensor) -> object:
    return th.unpack_order(loss, "bfs"), th.check_order(loss, [], "dfs")


def opened_and_closed(loss: Tensor) -> object:
    with suppress(NotImplementedError), th.debug(loss) as session:  # is refused in a process group
        return session.ready, session.stops
    return None


PREDICTIONS: list[Callable[[Tensor], object]] = [simulate, plan, peak_report, structure, orders, opened_and_closed]
"""Verbs that take a loss. They run nothing of the program."""


def compare(program: Program) -> object:
    return th.compare(program.make_loss, ["heap", "bfs"], repetitions=1)


def plan_mirror(program: Program) -> object:
    with suppress(NotImplementedError):  # is refused under fully_shard
        return th.plan_mirror(program.make_loss, seconds=0.01, repetitions=1)
    return None


def advise(program: Program) -> object:
    return th.advise(program.make_loss, rounds=1)


def order_dependent(program: Program) -> object:
    return th.order_dependent(program.make_loss, "bfs")


def find_unused(program: Program) -> object:
    return th.find_unused(program.make_loss, program.model)


def find_nan(program: Program) -> object:
    return th.find_nan(program.make_loss)


def find_nan_natively(program: Program) -> object:
    return th.find_nan(program.make_loss, engine="native")


QUICK: list[Callable[[Program], object]] = [find_unused, find_nan, find_nan_natively]
LONG: list[Callable[[Program], object]] = [compare, plan_mirror, advise, order_dependent]
"""Verbs that run the program, once and many times."""
