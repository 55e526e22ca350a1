"""Started on two ranks by test_rank_agreement.py: backwards whose collectives pair up by order.

argv: the rank, the folder for what each logs, and the world size.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import tapescope as ts
from tapescope.engine.api.time_backwards import time_backward
from tapescope.engine.planning.policies import find_policy

LIMIT_S = 6.0


class SumOverRanks(torch.autograd.Function):
    """The identity, whose gradient is summed over the ranks: what tensor parallel has at each column-wise layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


def loss_of(branches: int = 3, communicates: bool = True, longer: bool = False) -> tuple[list[Tensor], Tensor]:
    """Branches of equal shapes, so that their collectives can pair up crosswise."""
    leaves = [torch.full((4,), 1.0 + number, requires_grad=True) for number in range(branches)]
    summed = SumOverRanks.apply if communicates else Tensor.clone
    total = torch.zeros(())
    for number, leaf in enumerate(leaves):
        total = total + (summed(leaf.exp()) * (10.0**number)).sin().sum()
    return leaves, total * 1.0 if longer else total


def oldest(ready: Any, state: object) -> ts.Task:
    return min(ready, key=lambda task: task.id)


def run(policy: Any, **kinds: Any) -> dict[str, Any]:
    """One backward against that of plain torch, on both ranks."""
    leaves, total = loss_of(**kinds)
    started = time.monotonic()
    found = ts.backward(total, policy=policy)
    seconds = time.monotonic() - started
    return {
        "policy": found.policy,
        "note": found.note,
        "text": repr(found),
        "order": found.order,
        "seconds": seconds,
        "gradients": [None if leaf.grad is None else leaf.grad.tolist() for leaf in leaves],
    }


def plain(**kinds: Any) -> dict[str, Any]:
    leaves, total = loss_of(**kinds)
    total.backward()
    return {"gradients": [leaf.grad.tolist() for leaf in leaves if leaf.grad is not None]}


def refused(call: Callable[[], object]) -> str:
    try:
        call()
    except (ts.PolicyError, NotImplementedError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def session() -> dict[str, Any]:
    """A stepped backward, which tries to change its order under way."""
    leaves, total = loss_of()
    with ts.debug(total, engine="native", policy="bfs") as session:
        session.step()
        why = refused(lambda: setattr(session, "policy", "heap"))
        found = session.run()
    gradients = [leaf.grad.tolist() for leaf in leaves if leaf.grad is not None]
    return {"policy": found.policy, "refused": why, "gradients": gradients}


def compared(policies: list[Any]) -> dict[str, Any]:
    """Return the measured policies, or the reason why none was measured."""
    compare = partial(ts.compare, lambda: loss_of()[1], policies, repetitions=1)
    try:
        return {"orders": {row.policy: row.timeline.order for row in compare().rows}}
    except ts.PolicyError as error:
        return {"refused": str(error)}


def profiled(policy: Any) -> dict[str, Any]:
    found = ts.profile(lambda: loss_of()[1], policy)
    assert found.timeline is not None
    return {"policy": found.policy, "note": found.note, "order": found.timeline.order}


def timed(policy: Any) -> str:
    """Why the time of a policy's backward is not known."""
    chosen = find_policy(policy)
    return refused(lambda: time_backward(lambda: loss_of()[1], chosen))


def main() -> None:
    rank, folder, size = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    ts.wait_for_ranks(LIMIT_S)
    first = rank == 0
    results: dict[str, Any] = {"plain": plain()}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        results["agreed"] = [run("bfs") for _ in range(2)]
        results["other orders"] = run("bfs" if first else oldest)
        results["one keeps its own"] = run("bfs" if first else "dfs")  # which is that of PyTorch here
        results["session"] = session()
        results["a user's"] = run(oldest)
        results["agreed once"] = [run("bfs", communicates=False) for _ in range(2)]
        results["other orders once"] = run(oldest if first else "random(1)", communicates=False)
        results["compared"] = compared(["bfs", "heap"])
        results["compared, other orders"] = compared(["heap", "bfs" if first else oldest])
        results["timed, other orders"] = timed("bfs" if first else oldest)
        results["profiled, other orders"] = profiled("bfs" if first else oldest)
        results["other kinds"] = run("bfs", longer=not first)
        results["nobody answers"] = run("bfs" if first else "heap")
        results["after that"] = run("bfs")
        results["warnings"] = [str(each.message) for each in said if "Run.note" in str(each.message)]
    (folder / f"{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # gloo's destructor may wait for a thread which waits for the GIL


if __name__ == "__main__":
    main()
