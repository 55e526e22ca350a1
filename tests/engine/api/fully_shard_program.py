"""Started twice by tests/engine/api/test_fully_shard.py: steps of FSDP2 on two ranks, logged as JSON.

Each rank has data of its own. argv: the rank, the folder for the logs, and as JSON by variant the names of the verbs.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate import replicate
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_by_stages
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import tapescope as ts

STEPS = 3
LIMIT = timedelta(seconds=60)  # for what waits for the other rank
POLICIES = [name for name in ts.orders.POLICIES if name not in ("search", "optimal", "comm_first", "random")]
POLICIES += ["random(1)", "random(2)", "search(0.1)", "optimal(20)", "comm_first(kind:Tanh*)"]


class Block(nn.Module):
    """A layer used twice, and its input used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(self.a(x).tanh()) + self.a(x.sin())


class Net(nn.Module):
    """Blocks side by side and in a row; one is called twice, one is left out on demand, one is not sharded alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.spare = Block()
        self.last = nn.Linear(6, 6)
        self.skips = self.checkpoints = self.reenters = self.breaks = False

    def call(self, block: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=self.reenters) if self.checkpoints else block(x)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.call(self.blocks[0], x) + self.call(self.blocks[1], x)
        x = self.call(self.blocks[2], self.call(self.blocks[1], x).tanh())
        if self.breaks:
            x = (x - x.detach()).sqrt() + x  # an infinite gradient
        return self.last(x if self.skips else x + self.call(self.spare, x))


class Training:
    """Some steps of gradient descent."""

    def __init__(self, options: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.net = self.model = Net()
        self.accumulates = options.pop("accumulates", False)
        self.net.skips = options.pop("skips", False)
        self.net.reenters = options.pop("reenters", False)
        self.net.checkpoints = options.pop("checkpoints", self.net.reenters)
        optimizes = options.pop("optimizes", False)
        if (wrapper := options.pop("wrapper", None)) is None:
            self._shard(options)
        else:
            self.model = wrapper(self.net)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for parameter in self.model.parameters() if optimizes else ():
            parameter.register_post_accumulate_grad_hook(descend)
        self.batches = torch.Generator().manual_seed(dist.get_rank())
        self.batch = torch.zeros(4, 6)
        self.ran: list[str] = []  # whose orders, as runs tell

    def _shard(self, options: dict[str, Any]) -> None:
        root_alone = options.pop("root_alone", False)
        replicated = options.pop("replicated", False)
        ranks = dist.get_world_size()
        shape, names = ((1, ranks), ("replicate", "shard")) if options.pop("hybrid", False) else ((ranks,), ("shard",))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate",) if replicated else names)
        shard: Any = replicate_by_stages if replicated else fully_shard
        for block in () if root_alone else (*self.net.blocks, self.net.spare):
            shard(block, mesh=mesh, **options)
        shard(self.model, mesh=mesh, **options)

    def loss(self) -> Tensor:
        loss: Tensor = self.model(self.batch).square().mean()
        return loss

    def steps(self, backward: Callable[[Training], object]) -> Iterator[list[Any]]:
        """After each step's backward the gradients and the parameters.

        All but the last step's are `backward`'s, which is PyTorch's.
        """
        for step in range(STEPS):
            for micro_step in range(1 + self.accumulates):
                self.batch = torch.randn(4, 6, generator=self.batches)
                if self.accumulates:
                    assert isinstance(self.model, FSDPModule)
                    self.model.set_requires_gradient_sync(micro_step == 1)
                if step < STEPS - 1:
                    backward(self)
                else:
                    self.loss().backward()
            grads = [each.grad for each in self.model.parameters()]
            both = (*grads, *(each.detach().clone() for each in self.model.parameters()))
            yield [None if each is None else local(each).flatten().tolist() for each in both]
            self.optimizer.step()
            self.optimizer.zero_grad()


def local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def descend(parameter: Tensor) -> None:
    """Step the optimizer during the backward, which frees each gradient at once."""
    with torch.no_grad():
        parameter.sub_(parameter.grad, alpha=0.1)
    parameter.grad = None


def flat(use_orig_params: bool, net: Net) -> nn.Module:
    """FSDP1, which makes one parameter of those of a block."""
    options: dict[str, Any] = {"use_orig_params": use_orig_params, "device_id": torch.device("cpu")}
    for number, block in enumerate(net.blocks):
        net.blocks[number] = FullyShardedDataParallel(block, **options)
    return FullyShardedDataParallel(net, **options)


def plain(training: Training) -> None:
    training.loss().backward()


def under(policy: Any, training: Training, **options: Any) -> None:
    training.ran.append(ts.backward(training.loss(), policy=policy, **options).policy)


def redirected(policy: Any, training: Training) -> None:
    with ts.policy(policy):
        training.loss().backward()


def stepped(training: Training) -> None:
    with ts.debug(training.loss(), policy="bfs", engine="native") as session:
        while session.current is not None:
            session.step()


def switched(training: Training) -> None:
    """Refused, and the session that this closes runs to its end."""
    with ts.debug(training.loss(), policy="bfs", engine="native") as session:
        session.step()
        session.policy = "dfs"


def closed(after: int, training: Training) -> None:
    with ts.debug(training.loss(), policy="bfs", engine="native") as session:
        for _ in range(after):
            if session.current is not None:
                session.step()


def dropped(training: Training) -> None:
    session = ts.debug(training.loss(), engine="native")
    session.step()
    del session


def before(verb: Callable[[Callable[[], Tensor]], object], training: Training) -> None:
    """Run a verb with a separate forward before the step."""
    try:
        verb(training.loss)
    finally:
        training.loss().backward()


def between(verb: Callable[[Callable[[], Tensor]], object], training: Training) -> None:
    """The same between the step's forward and its backward."""
    loss = training.loss()
    try:
        verb(training.loss)
    finally:
        loss.backward()


def on_graph(verb: Callable[[Tensor], object], training: Training) -> None:
    """A verb that looks at the loss before its backward."""
    loss = training.loss()
    try:
        verb(loss)
    finally:
        loss.backward()


def nan(training: Training) -> None:
    model = training.net
    model.breaks = True
    try:
        assert ts.find_nan(training.loss)
    finally:
        model.breaks = False
        training.loss().backward()


def unused(training: Training) -> None:
    model = training.model
    training.loss()  # the first makes the parameters that a graph has
    skips, model.skips = model.skips, True
    try:
        report = ts.find_unused(training.loss, model)
        (training.loss() * 0).backward()  # after which the parameters are gathered anew in the verb's first forward
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of a loss that differs from run to run
            assert ts.find_unused(training.loss, model).names == report.names
    finally:
        model.skips = skips
        training.loss().backward()
    assert report.names == tuple(name for name, _ in model.named_parameters() if name.startswith("spare.")), report
    assert {each.why for each in report} == {"never used"}, report
    stories = {each.story for each in report}
    assert all("spare (FSDPBlock)" in each or "spare (Block)" in each for each in stories), stories
    assert "fully_shard" in report.sentences[-1], report


def named(training: Training) -> None:
    """Leaves have the names of the model's parameters, with a capture, with the model's own, and with neither."""
    spared = ("spare.",) if training.model.skips else ()
    names = [name for name, _ in training.model.named_parameters() if not name.startswith(spared)]
    with ts.capture():
        loss = training.loss()
    for graph in (ts.graph(loss), ts.graph(loss, training.model)):
        assert sorted(str(task.parameter) for task in graph.tasks if task.is_leaf) == sorted(names)
    loss.backward()
    loss = training.loss()
    assert sorted(str(task.parameter) for task in ts.graph(loss).tasks if task.is_leaf) == sorted(names)
    (loss * 0).backward()


def simulated(policies: list[str], loss: Tensor) -> None:
    graph = ts.graph(loss)
    for policy in policies:
        ts.simulate(graph, policy)


OWN: dict[str, Callable[[Callable[[], Tensor]], object]] = {
    "find_nan": ts.find_nan,
    "find_unused": lambda make: ts.find_unused(make, make.__self__.model),  # type: ignore[attr-defined]
    "compare": partial(ts.compare, policies=["heap", "bfs", "delay_accumulate"]),
    "plan_recompute": ts.plan_recompute,
    "advise": ts.advise,
    "forward": lambda make: make(),
}
ON_GRAPH: dict[str, Callable[[Tensor], object]] = {
    "simulate": partial(simulated, ["heap", "bfs", "lpmf"]),
    "simulate all": partial(simulated, POLICIES),
    "plan": ts.plan_order,
    "makespan": lambda loss: ts.makespan(loss, policies=["heap", "bfs"]),
    "unpack_order": ts.orders.unpack_order,
    "check_order": lambda loss: ts.orders.check_order(loss, [("kind:Tanh*", "kind:Sin*")], "bfs"),
    "groups": ts.find_batches,
    "saved": lambda loss: ts.graph(loss).saved,
    "svg": lambda loss: ts.graph(loss).to_svg(),
    "direct": lambda loss: ts.backward(loss, engine="direct"),
    "direct session": lambda loss: ts.debug(loss, engine="direct"),
    "dynamic": lambda loss: ts.backward(loss, policy=ts.Policy("live", "", lambda task, _: (task.id,), dynamic=True)),
}
VERBS: dict[str, Callable[[Training], object]] = {
    **{f"backward {policy}": partial(under, policy) for policy in POLICIES},
    "backward choice": partial(under, lambda ready, state: ready[-1]),
    "constrained": lambda training: under(ts.orders.constrained("bfs", [("kind:Mean*", "kind:Tanh*")]), training),
    "against a stage": lambda training: under(ts.orders.constrained("bfs", [("kind:Tanh*", "kind:Sin*")]), training),
    "measured": partial(under, "bfs", memory=True),
    "profile": lambda training: ts.profile(training.loss, "bfs", trace="full"),
    "traced": partial(under, "dfs", trace="full"),
    **{f"policy {policy}": partial(redirected, policy) for policy in ("heap", "bfs", "auto")},
    "stepped": stepped,
    "switched": switched,
    **{f"closed after {count}": partial(closed, count) for count in (1, 20, 45)},
    "dropped": dropped,
    "nan": nan,
    "unused": unused,
    "named": named,
    **{f"{name} before": partial(before, verb) for name, verb in OWN.items()},
    **{f"{name} between": partial(between, verb) for name, verb in OWN.items() if name != "forward"},
    **{name: partial(on_graph, verb) for name, verb in ON_GRAPH.items()},
}
ELSEWHERE = [
    name for name in VERBS if name not in ("named", "unused", "find_unused before", "against a stage", "dynamic")
]
"""What can be asked of models that are not under `fully_shard`."""
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "accumulated": {"accumulates": True},
    "kept gathered": {"reshard_after_forward": False},
    "root alone": {"root_alone": True},
    "left out": {"skips": True},
    "checkpointed": {"checkpoints": True},
    "checkpointed reentrantly": {"reenters": True},
    "hybrid": {"hybrid": True},
    "flat": {"wrapper": partial(flat, False)},
    "flat, of the user's parameters": {"wrapper": partial(flat, True)},
    "in buckets": {"wrapper": DistributedDataParallel},
    "in buckets of a module": {"wrapper": replicate},
    "replicated": {"replicated": True},
    "optimized inside": {"optimizes": True},
    "mixed": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
}
TOLERANCES = {"mixed": 2**-4}
"""Where other orders of sums give more than a share of 0.001: bfloat16 has steps of 1/128, and some add up."""


def trained(options: dict[str, Any], verb: Callable[[Training], object]) -> dict[str, Any]:
    """The gradients of each step, whose orders ran, and by what the verb was refused."""
    refusals: list[str] = []

    def backward(training: Training) -> None:
        try:
            verb(training)
        except (NotImplementedError, ts.PolicyError, ValueError) as error:
            refusals.append(f"{type(error).__name__}: {error}")
            if verb not in PLAIN_INSIDE:
                training.loss().backward()

    try:
        training = Training(dict(options))
        return {"steps": list(training.steps(backward)), "ran": training.ran, "refused": refusals}
    except Exception as error:  # the test reports a verb that fails
        import traceback

        return {"steps": [], "refused": refusals, "error": "".join(traceback.format_exception(error))[-3000:]}


PLAIN_INSIDE = {switched, nan, unused} | {
    verb for verb in VERBS.values() if isinstance(verb, partial) and verb.func in (before, between, on_graph)
}
"""The verbs whose step is over when they are refused."""


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    asked: dict[str, list[str]] = json.loads(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=LIMIT)
    ts.wait_for_ranks(LIMIT.total_seconds())
    gc.freeze()  # each verb looks for hooks through all objects of the process
    results: dict[str, Any] = {}
    for variant, names in asked.items():
        found = results[variant] = {"plain": trained(VARIANTS[variant], plain)}
        for name in names:
            (folder / f"{rank}.at").write_text(f"{name!r} under {variant!r}", encoding="utf-8")
            found[name] = trained(VARIANTS[variant], VERBS[name])
            if "--tell" in sys.argv:
                tell(variant, name, found["plain"], found[name])
    (folder / f"{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # gloo's destructor may wait for a thread which waits for the GIL


def tell(variant: str, name: str, wanted: dict[str, Any], found: dict[str, Any]) -> None:
    tolerance = TOLERANCES.get(variant, 1e-3)
    wrong = [different(*steps, tolerance) for steps in zip(found["steps"], wanted["steps"], strict=False)]
    said = (wrong, found.get("ran"), found["refused"][:1], found.get("error", "")[-1500:])
    print(variant, "|", name, "|", *said, flush=True)


def different(found: list[Any], wanted: list[Any], tolerance: float) -> list[int]:
    """The numbers of the gradients that differ, and of the parameters, which stand after them.

    tolerance: the share of the largest element by which another order of sums may change any.
    """
    return [
        number
        for number, (one, other) in enumerate(zip(found, wanted, strict=True))
        if (one is None) != (other is None)
        or (one is not None and not is_close(torch.tensor(one), torch.tensor(other), tolerance))
    ]


def is_close(found: Tensor, wanted: Tensor, tolerance: float) -> bool:
    if not wanted.numel():  # of a flat parameter this rank may have nothing
        return not found.numel()
    return bool(((found - wanted).abs() <= tolerance * wanted.abs().max() + 1e-5).all())


if __name__ == "__main__":
    main()
