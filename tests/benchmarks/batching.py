"""Products of several tasks run as one, against each by itself: PyTorch #18157 on the direct engine.

Ratios above 1 say that running as one was faster, below 1 that it was slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from measure import Effort, Row, ratios, seconds
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.memory.function_levels import Step, allocated_levels
from tapescope.engine.session.batching.batched_products import Operands, Tally, stacked
from tapescope.engine.session.batching.product_groups import Group
from tapescope.engine.studies.workloads import WORKLOADS, workload
from tapescope.inspector.text.sizes_and_counts import size_text

_MEMBERS = (2, 4, 8, 16, 32, 64)
_BOTH: tuple[Literal["auto"] | None, ...] = (None, "auto")
_TREES = ("linear50", "rnn")


def rows(effort: Effort) -> Iterator[Row]:
    for members in (2, 4) if effort.tiny else _MEMBERS:
        sizes = {"width": 8, "batch": 4} if effort.tiny else {}
        model, make_loss = workload("ensemble").build(members=members, **sizes)
        yield from _speed(f"ensemble of {members}", model, make_loss, effort)
        yield from _products_alone(f"ensemble of {members}", make_loss, effort)
    for name in _TREES:
        model, make_loss = workload(name).build(**(_TINY[name] if effort.tiny else {}))
        yield from _speed(name, model, make_loss, effort)
        yield _peak(name, model, make_loss)
    model, make_loss = workload("mixture_of_experts").build()
    yield from _speed("mixture_of_experts", model, make_loss, effort)
    refused = dict.fromkeys(each.why for each in ts.find_batches(make_loss()).refused)
    yield Row("mixture_of_experts: not joined", "×", outcome="; ".join(refused))


_TINY = {"linear50": {"uses": 50, "width": 32}, "rnn": {"steps": 8, "width": 32}}


def rows_cuda(effort: Effort) -> Iterator[Row]:
    """The same of ensembles on CUDA, where many small kernels are bound by their launches; by CUDA's own clock."""
    if not torch.cuda.is_available():
        yield Row("batching on CUDA", "×", outcome="no CUDA here")
        return
    for members in (2, 4) if effort.tiny else _MEMBERS:
        model, make_loss = WORKLOADS["ensemble"].build("small", device="cuda", members=members)
        yield from _speed(f"ensemble of {members} on CUDA", model, make_loss, effort, _cuda_seconds)


def _speed(
    name: str,
    model: nn.Module,
    make_loss: Callable[[], Tensor],
    effort: Effort,
    clock: Callable[[Callable[[], object]], float] = seconds,
) -> Iterator[Row]:
    """The backward, graph and groups found before it included: the direct engine's, and PyTorch's own."""

    def timed(
        run: Callable[[Tensor], object], clock: Callable[[Callable[[], object]], float] = clock
    ) -> Callable[[], float]:
        def once() -> float:
            model.zero_grad(set_to_none=True)
            loss = make_loss()
            return clock(lambda: run(loss))

        return once

    def in_batches(loss: Tensor) -> ts.Run:
        return ts.backward(loss, engine="direct", batch="auto")

    batched, alone = timed(in_batches), timed(lambda loss: ts.backward(loss, engine="direct"))
    found = in_batches(make_loss()).batches
    assert found is not None
    if not found:
        yield Row(f"{name}: as one", "×", outcome="no group: each task runs by itself")
        return
    before = sum(batch.launches_before for batch in found)
    after = sum(batch.launches for batch in found)
    held = sum(batch.held_bytes for batch in found)
    kept = f", {size_text(held)} kept" if held else ""
    note = f"{before:,} launches → {after:,}, {size_text(found.copied_bytes)} of copies{kept}"
    yield Row(f"{name}: direct, one by one / as one", "×", ratios(alone, batched, effort.repetitions), note=note)
    tasks = [timed(lambda loss, batch=batch: ts.backward(loss, engine="direct", batch=batch), _ran) for batch in _BOTH]
    yield Row(f"{name}: of that the tasks", "×", ratios(*tasks, effort.repetitions))
    within = timed(in_batches), timed(lambda loss: loss.backward())
    yield Row(f"{name}: PyTorch's own / direct, as one", "×", ratios(within[1], within[0], effort.repetitions))


def _products_alone(name: str, make_loss: Callable[[], Tensor], effort: Effort) -> Iterator[Row]:
    """The products of one group and nothing else: its nodes called one by one, and stacked."""
    loss = make_loss()
    graph = ts.graph(loss)
    found = ts.find_batches(graph)
    group = next((group for group in found.backward if len(group.outputs) == 2), None)
    if group is None:
        return
    gradients = [torch.randn(group.product.result.shape) for _ in group.tasks]

    operands = _operands(found, graph, group, gradients)

    def one_by_one() -> list[Tensor]:
        nodes = (graph.nodes[task] for task in group.tasks)
        return [node(gradient) for node, gradient in zip(nodes, gradients, strict=True)]  # type: ignore[operator]

    def as_one() -> object:
        return stacked(operands, group.outputs, None, Tally())

    with torch.no_grad():
        values = ratios(lambda: seconds(one_by_one), lambda: seconds(as_one), 10 * effort.repetitions)
    yield Row(f"{name}: products of one layer, one by one / as one", "×", values)


def _operands(found: ts.types.Groups, graph: ts.Graph, group: Group, gradients: list[Tensor]) -> list[Operands]:
    return [
        Operands.of(found.products[task], graph.nodes[task], gradient, group.outputs)
        for task, gradient in zip(group.tasks, gradients, strict=True)
    ]


def _peak(name: str, model: nn.Module, make_loss: Callable[[], Tensor]) -> Row:
    """Return the peaks of a backward measured by the CPU's allocator: batched, one by one under heap, and under bfs."""

    def peak(run: Callable[[Tensor], object]) -> int:
        def compute(step: Step) -> None:
            loss = make_loss()
            step()
            run(loss)
            step()

        model.zero_grad(set_to_none=True)
        return allocated_levels(compute)[1].peak_bytes

    as_one = peak(lambda loss: ts.backward(loss, engine="direct", batch="auto"))
    heap = peak(lambda loss: ts.backward(loss, policy="heap"))
    bfs = peak(lambda loss: ts.backward(loss, policy="bfs"))
    note = f"{size_text(as_one)}, heap {size_text(heap)}, bfs {size_text(bfs)}"
    return Row(f"{name}: peak, as one / heap", "×", (as_one / heap,), note=note)


def _ran(call: Callable[[], object]) -> float:
    """Return the times that a run reports, without reading the graph and finding groups."""
    run = call()
    assert isinstance(run, ts.Run)
    return run.elapsed_ns / 1e9


def _cuda_seconds(call: Callable[[], object]) -> float:
    """From the first launch to the end of the last, with the device idle before."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000
