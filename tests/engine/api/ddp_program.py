"""Started twice by tests/engine/api/test_distributed.py: steps of DistributedDataParallel, logged as JSON.

Each rank has data of its own. argv: the rank, and the folder for the logs. No postponed annotations: DDP looks at those
of its hooks.
"""

import copy
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.schedule.ddp_buckets import buckets_of

STEPS = 3  # buckets are made up anew in the second


class Net(nn.Module):
    """Two branches, so that policies differ; a layer used twice; one that is skipped on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.left = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.right = nn.Linear(16, 16)
        self.skipped = nn.Linear(16, 16)

    def forward(self, x: Tensor, skip: bool, checkpointed: bool) -> Tensor:
        x = self.first(x)
        left = x
        for layer in self.left:
            left = checkpoint(layer, left, use_reentrant=False) if checkpointed else layer(left)
            left = left.tanh()
        right = self.right(self.right(x).sin())
        return left + right if skip else left + self.skipped(right)


Log = list[tuple[int, str | None]]


def wrap(net: Net, log: Log, graph: list[ts.Graph], **options: Any) -> DistributedDataParallel:
    """With a comm hook that does what DDP does by itself, and notes each bucket and in which task it was called."""

    def all_reduce(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        node = torch._C._current_autograd_node()
        nodes = graph[-1].nodes if graph else ()
        log.append((bucket.index(), nodes.index(node) if node in nodes else None))
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / dist.get_world_size())

    wrapper = DistributedDataParallel(copy.deepcopy(net), bucket_cap_mb=0.0015, **options)
    wrapper.register_comm_hook(None, all_reduce)
    return wrapper


Backward = Callable[[Tensor], object]


def train(
    net: Net,
    backward: Backward,
    *,
    skip: bool = False,
    checkpointed: bool = False,
    accumulate: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Some steps of gradient descent; all that can be compared."""
    log: Log = []
    graphs: list[ts.Graph] = []
    wrapper = wrap(net, log, graphs, **options)
    optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    steps = []
    for _ in range(STEPS):
        if accumulate:
            with wrapper.no_sync():
                loss = wrapper(torch.randn(4, 16, generator=generator), skip, checkpointed).square().mean()
                assert buckets_of(ts.graph(loss)) == ()
                backward(loss)
        loss = wrapper(torch.randn(4, 16, generator=generator), skip, checkpointed).square().mean()
        graph = ts.graph(loss)
        graphs.append(graph)
        buckets = buckets_of(graph)
        log.clear()
        run = backward(loss)
        step: dict[str, Any] = {
            "gradients": [None if each.grad is None else each.grad.flatten().tolist() for each in wrapper.parameters()],
            "hook": list(log),
            "buckets": [(bucket.index, sorted(bucket.tasks), bucket.nbytes) for bucket in buckets],
        }
        if isinstance(run, ts.Run):
            assert run.trace is not None and run.trace.buckets == buckets
            step["reductions"] = [
                (each.bucket.index, each.completed_by, each.started_by) for each in run.trace.reductions
            ]
            step["records"] = [
                (record.task.id, [each.index for each in record.completed], [each.index for each in record.reduced])
                for record in run.trace
                if record.completed or record.reduced
            ]
        steps.append(step)
        optimizer.step()
        optimizer.zero_grad()
    return {"steps": steps, "weights": [each.flatten().tolist() for each in wrapper.parameters()]}


def stepped(loss: Tensor) -> ts.Run:
    with ts.debug(loss, policy="bfs", engine="native") as session:
        while session.current is not None:
            session.step()
        return session.run()


@contextmanager
def redirected(policy: str) -> Iterator[Backward]:
    """`loss.backward()` under `ts.policy`, which gives the run to look at."""
    runs: list[ts.Run] = []
    with ts.policy(policy, trace="off", on_run=runs.append):

        def backward(loss: Tensor) -> ts.Run:
            runs.clear()
            loss.backward()
            return runs[-1]

        yield backward


def refusal(net: Net) -> str:
    log: Log = []
    loss = wrap(net, log, [])(torch.ones(2, 16), False, False).sum()
    try:
        ts.backward(loss, engine="direct")
    except NotImplementedError as error:
        loss.backward()  # nothing has run, and the reducer waits for nothing
        return str(error)
    return "not refused"


def two_wrappers(net: Net) -> list[list[int | None]]:
    """For each bucket of two modules in one graph, the module and the task that started it."""
    log: Log = []
    graphs: list[ts.Graph] = []
    inner, outer = wrap(net, log, graphs), wrap(net, log, graphs)
    loss = outer(inner(torch.ones(2, 16), False, False), False, False).sum()
    graphs.append(ts.graph(loss))
    run = ts.backward(loss, policy="bfs", trace="off")
    assert run.trace is not None
    found = [[each.bucket.wrapper, each.started_by] for each in run.trace.reductions]
    assert sorted(log) == sorted((each.bucket.index, each.started_by) for each in run.trace.reductions)
    return found


VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "checkpointed": {"checkpointed": True},
    "accumulated": {"accumulate": True},
    "unused": {"skip": True, "find_unused_parameters": True},
    "static": {"static_graph": True},
    "views": {"gradient_as_bucket_view": True},
}


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = Net()
    wrap(net, [], [])  # imports what DDP needs
    gc.freeze()  # each backward looks for hooks, and for modules of DDP, through all objects of the process
    results: dict[str, Any] = {}
    for variant, options in VARIANTS.items():
        results[variant] = {"plain": train(net, Tensor.backward, **options)}
        for policy in ("heap", "bfs", "dfs"):
            with redirected(policy) as backward:
                results[variant][policy] = train(net, backward, **options)
    results["as it is"]["stepped"] = train(net, stepped)
    results["refusal"] = refusal(net)
    results["two wrappers"] = two_wrappers(net)
    (folder / f"{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # gloo's destructor may wait for a thread which waits for the GIL


if __name__ == "__main__":
    main()
