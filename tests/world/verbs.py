"""Public verbs that are asked for a prediction or a finding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from torch import Tensor

import tapescope as ts

from .programs import Program

ORDERS = ["bfs", "heap", "lpmf"]


def simulate(loss: Tensor) -> object:
    graph = ts.graph(loss)
    return [ts.simulate(graph, order) for order in ORDERS]


def plan(loss: Tensor) -> object:
    return ts.plan_order(loss, seconds=0.02)


def auto(loss: Tensor) -> object:
    return ts.simulate(ts.graph(loss), "auto")


def peak_report(loss: Tensor) -> object:
    return ts.peak_report(ts.simulate(ts.graph(loss))).hints


def structure(loss: Tensor) -> object:
    graph = ts.graph(loss)
    return graph.saved, graph.to_svg(), ts.find_batches(graph)


def orders(loss: Tensor) -> object:
    return ts.orders.unpack_order(loss, "bfs"), ts.orders.check_order(loss, [], "dfs")


def opened_and_closed(loss: Tensor) -> object:
    with suppress(NotImplementedError), ts.debug(loss) as session:  # is refused in a process group
        return session.ready, session.stops
    return None


PREDICTIONS: list[Callable[[Tensor], object]] = [simulate, plan, peak_report, structure, orders, opened_and_closed]
"""Verbs that take a loss. They run nothing of the program."""


def compare(program: Program) -> object:
    return ts.compare(program.make_loss, ["heap", "bfs"], repetitions=1)


def plan_recompute(program: Program) -> object:
    with suppress(NotImplementedError):  # is refused under fully_shard
        return ts.plan_recompute(program.make_loss, seconds=0.01, repetitions=1)
    return None


def advise(program: Program) -> object:
    return ts.advise(program.make_loss, rounds=1)


def find_order_dependence(program: Program) -> object:
    return ts.find_order_dependence(program.make_loss, "bfs")


def find_unused(program: Program) -> object:
    return ts.find_unused(program.make_loss, program.model)


def find_nan(program: Program) -> object:
    return ts.find_nan(program.make_loss)


def find_nan_natively(program: Program) -> object:
    return ts.find_nan(program.make_loss, engine="native")


QUICK: list[Callable[[Program], object]] = [find_unused, find_nan, find_nan_natively]
LONG: list[Callable[[Program], object]] = [compare, plan_recompute, advise, find_order_dependence]
"""Verbs that run the program, once and many times."""
