"""The benchmark of PyTorch PR #4746: ready models under several orders, measured on PyTorch's own engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import get_args

import torch

from ..api.backward import backward
from ..api.environment import this_machine
from ..api.restore_state import AsFound
from ..schedule.policy import AnyPolicy, Choice, Policy, is_dynamic
from .compare import chosen_policies, compare
from .comparison import Comparison
from .makespan import makespan
from .ready_workload import OwnProgram, Size, Workload
from .studied_orders import TIMED_RUNS, OrderStudy, StudiedWorkload
from .workloads import workload

WORKLOADS_STUDIED = (
    "resnet50",
    "mnist",
    "seq2seq",
    "sequence_labeler",
    "lstm_lm",
    "mlstm",
    "cyclegan",
    "linear50",
    "two_devices",
)
"""Those of the PR: its models, its mini-model (*) and the one crafted against HEAP (**)."""

ORDERS_STUDIED = ("bfs", "dfs", "heap")
"""The orders which the PR compared. HEAP, the last one, is what PyTorch took and still has."""

_APART = {"two_devices": {"far": "cuda:0"}}
"""By workload which of its modules the simulation puts on a device of their own where there is only one."""

_ON_SECOND = {"two_devices": "near"}
"""By workload which of its modules goes to a second accelerator, where there is one: else it is on the CPU."""


def order_study(
    workloads: Sequence[str | Workload] = WORKLOADS_STUDIED,
    policies: Sequence[AnyPolicy] = ORDERS_STUDIED,
    *,
    size: Size = "small",
    device: torch.device | str = "cpu",
    repetitions: int = 12,
    progress: Callable[[str], object] | None = None,
) -> OrderStudy:
    """Measures ready models under several orders: time and memory of the backward, and how long the queue gets.

    Each workload is made once. Under each policy one forward and backward have their memory recorded (`ts.profile`),
    then `repetitions` others are timed, each on a fresh forward and with the policies in turns; a backward before all
    of them warms up. See `ts.compare`, which does this for any program. A workload that can't be measured is left out,
    and `OrderStudy.refused` says why. An interrupt (Ctrl-C) after the first workload ends the study with those that
    have been measured.

    Args:
        workloads: their names, or Workload objects; a function of yours is one as `own_program(make_loss, name)`.
        policies: as in `ts.backward`.
        size: "small" or "full" of each workload.
        device: where the models live.
        repetitions: how often each is timed.
        progress: called before each run with what comes, such as `linear50 (5 of 6): bfs, round 3 of 12`.

    Raises:
        ValueError: an unknown workload, size or policy, one twice, or none; no such device; `repetitions` is below 1.
        KeyboardInterrupt: before the first workload was measured.
    """
    chosen = [workload(each) if isinstance(each, str) else each for each in workloads]
    names = [each.name for each in chosen]
    if not chosen:
        raise ValueError("there is no workload to study")
    if len(set(names)) < len(names):
        raise ValueError(f"a workload is named twice: {', '.join(names)}")
    if repetitions < 1:
        raise ValueError(f"repetitions must be at least 1, not {repetitions}")
    if size not in get_args(Size):
        raise ValueError(f"unknown size {size!r}; known: {', '.join(get_args(Size))}")
    orders = chosen_policies(policies)
    place = usable_device(device)
    rows: list[StudiedWorkload] = []
    refused: dict[str, str] = {}
    interrupted = False
    for number, each in enumerate(chosen):
        told = None if progress is None else _prefixed(progress, f"{each.name} ({number + 1} of {len(chosen)})")
        try:
            rows.append(_studied(each, orders, size, place, repetitions, told))
        except (NotImplementedError, ValueError, torch.OutOfMemoryError) as error:
            refused[each.name] = str(error)
        except KeyboardInterrupt:
            if not rows:
                raise
            interrupted = True
            break
    place = _where(rows, place)
    return OrderStudy(tuple(rows), tuple(orders), repetitions, this_machine(place), str(place), refused, interrupted)


def _studied(
    each: Workload,
    orders: Mapping[str, Policy | Choice],
    size: Size,
    device: torch.device,
    repetitions: int,
    progress: Callable[[str], object] | None,
) -> StudiedWorkload:
    model, make_loss = each.build(size, device=device)
    sized = None if isinstance(each, OwnProgram) else size
    second = _second_accelerator(device)
    if each.name in _ON_SECOND and second is not None:
        model.get_submodule(_ON_SECOND[each.name]).to(second)
    policies = list(orders.values())
    comparison = compare(make_loss, policies, repetitions=repetitions, queues="per device", progress=progress)
    drawn = comparison.graph
    apart = None if len(drawn.devices) > 1 else _APART.get(each.name)
    planned = [_as_planned(policy, comparison) for policy in policies if not is_dynamic(policy)]
    if not planned or (apart is None and len(drawn.devices) < 2):
        return StudiedWorkload(each, sized, comparison)
    if progress is not None:
        progress("the times of its tasks")
    runs = []
    with AsFound(make_loss, "tapescope bench orders") as world:
        world.watch()
        for _ in range(TIMED_RUNS):
            with world.run():
                runs.append(backward(world.make_loss(), trace="off"))
    makespans = makespan(drawn, policies=planned, durations=runs, device_of=apart)
    return StudiedWorkload(each, sized, comparison, makespans)


def _where(rows: Sequence[StudiedWorkload], asked: torch.device) -> torch.device:
    """The device that was measured: programs of a user's are where they are, whatever was asked for."""
    if asked.type != "cpu" or not all(isinstance(row.workload, OwnProgram) for row in rows):
        return asked
    found = (device for row in rows for device in row.comparison.graph.devices if device.type != "cpu")
    return next(found, asked)


def _second_accelerator(first: torch.device) -> torch.device | None:
    """Another accelerator of this one's kind."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or first.type != accelerator.type or torch.accelerator.device_count() < 2:
        return None
    index = torch.accelerator.current_device_index() if first.index is None else first.index
    return torch.device(first.type, 0 if index else 1)


def _as_planned(policy: Policy | Choice, comparison: Comparison) -> Policy | Choice:
    """One that plans keeps the order that was measured."""
    if not isinstance(policy, Policy) or policy.plan is None:
        return policy
    order = comparison[policy.name].timeline.order
    return replace(policy, plan=lambda problem, ran: list(order))


def _prefixed(progress: Callable[[str], object], prefix: str) -> Callable[[str], object]:
    return lambda said: progress(f"{prefix}: {said}")


def usable_device(device: torch.device | str) -> torch.device:
    """The device, if tensors with values can be made there.

    Raises:
        ValueError: they can't.
    """
    try:
        found = torch.device(device)
        if found.type == "meta":
            raise ValueError("there is nothing to measure on the device meta: it has shapes and no values")
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"the device {str(device)!r} can't be used here: {why}") from error
    return found
