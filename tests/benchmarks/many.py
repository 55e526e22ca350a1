"""A million tasks: the graph, its orders, a backward and the folded picture, with the most memory that each needs."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from measure import Effort, Row, seconds
from torch import Tensor

import tapescope as ts
from tapescope.engine.planning.policies import find_policy
from tapescope.engine.planning.policy_orders import order_of
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.tests.engine.graph_shapes import chain, transformer

_TASKS = 1_000_000
_SHAPES = ("chain", "blocks, captured")
_STACK_BYTES = 1 << 30  # torch frees a long chain that Python has seen by recursion
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1 << 10


def rows(effort: Effort) -> Iterator[Row]:
    """Yield a row for each shape, each measured in a separate process, so that its memory does not include others'."""
    for shape in _SHAPES:
        command = [sys.executable, __file__, shape, str(200 if effort.tiny else _TASKS)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            what, taken, peak_bytes = json.loads(line)
            yield Row(f"{shape}: {what}", "s", (taken,), note=f"{peak_bytes / 2**30:.2f} GiB in all until then")


def _loss(shape: str, tasks: int) -> Tensor:
    if shape == "chain":
        return chain(tasks)
    model, make_loss = transformer(tasks)
    with ts.capture(model):
        return make_loss()


def _measure(shape: str, tasks: int) -> None:
    """Prints of each step what it is, its seconds, and the most memory that the process has had by its end."""

    def tell(what: str, step: Callable[[], Any]) -> None:
        taken = seconds(step)
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
        print(json.dumps([what, taken, peak_bytes]), flush=True)

    ts.plan_order(ts.graph(chain(3)))  # so that no row has what a first call loads
    ts.backward(chain(3), policy="bfs")
    ts.graph(chain(3)).to_svg()
    losses: list[Tensor] = []
    tell("the forward itself", lambda: losses.append(_loss(shape, tasks)))
    [loss] = losses
    graphs: list[ts.Graph] = []
    tell("graph", lambda: graphs.append(ts.graph(loss)))
    [graph] = graphs
    counted = f"{len(graph):,} tasks"
    tell(f"{counted}, folded SVG", graph.to_svg)
    for name, also in (("heap", ""), ("bfs", ""), ("lpmf", ", dry run included")):
        tell(f"{counted}, order of {name}{also}", lambda name=name: order_of(find_policy(name), Problem(graph)))
    tell(f"{counted}, native backward under bfs", lambda: ts.backward(loss, policy="bfs"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    threading.stack_size(_STACK_BYTES)
    measuring = threading.Thread(target=_measure, args=(sys.argv[1], int(sys.argv[2])))
    measuring.start()
    measuring.join()
    sys.stdout.flush()
    os._exit(0)  # skip the release of a million nodes
