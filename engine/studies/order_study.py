"""The benchmark of PyTorch PR #4746: ready models under several orders, measured on PyTorch's own engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import get_args

import torch

from ...inspector.validation import expect, expect_callable, expect_choice, expect_number
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
    "lstm_cell",
    "mlstm",
    "cyclegan",
    "linear50",
    "two_devices",
)
"""The workloads of the PR: its models, its mini-model (*) and the model crafted against HEAP (**)."""

ORDERS_STUDIED = ("bfs", "dfs", "heap")
"""The orders that the PR compared. PyTorch adopted HEAP, the last one, and still uses it."""

_ON_SECOND = {"two_devices": "near"}
"""For each workload, the module that runs on a second accelerator, or on the CPU if there is none."""


def order_study(
    workloads: Sequence[str | Workload] = WORKLOADS_STUDIED,
    policies: Sequence[AnyPolicy] = ORDERS_STUDIED,
    *,
    size: Size = "small",
    device: torch.device | str = "cpu",
    repetitions: int = 12,
    progress: Callable[[str], object] | None = None,
) -> OrderStudy:
    """Measure workloads under several orders: time and memory of the backward, and the length of the queue.

    Each workload is built once. After a warm-up backward, one forward and backward under each policy have their memory
    recorded (`ts.profile`). Then `repetitions` more are timed, each on a new forward, with the policies alternating.
    `ts.compare` does this for any program. Workloads that cannot be measured are skipped, and `OrderStudy.refused` has
    the reasons. An interrupt (Ctrl-C) after the first workload ends the study with the workloads measured so far.

    Args:
        workloads: names or Workload objects; pass your own function as `own_program(make_loss, name)`.
        policies: the policies, as in `ts.backward`.
        size: "small" or "full".
        device: the device of the models.
        repetitions: how often to time each policy.
        progress: a function that is called before each run with a text such as `linear50 (5 of 6): bfs, round 3 of 12`.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if a workload, size, policy or device is unknown, a workload or policy is repeated or missing, or
            `repetitions` is below 1.
        KeyboardInterrupt: if interrupted before the first workload was measured.
    """
    expect(workloads, Iterable, "workloads", "a list of names or workloads")
    chosen = [each if isinstance(each, Workload) else workload(each) for each in workloads]
    expect_number(repetitions, int, "repetitions", "the number of timed runs of each policy")
    if progress is not None:
        expect_callable(progress, 1, "progress", "a function of one text, called before each run")
    names = [each.name for each in chosen]
    if not chosen:
        raise ValueError("workloads must not be empty")
    if len(set(names)) < len(names):
        raise ValueError(f"a workload is repeated: {', '.join(names)}")
    if repetitions < 1:
        raise ValueError(f"repetitions must be at least 1, got {repetitions}")
    expect_choice(size, get_args(Size), "size")
    orders = chosen_policies(policies)
    place = usable_device(device)
    rows: list[StudiedWorkload] = []
    refused: dict[str, str] = {}
    interrupted = False
    for number, each in enumerate(chosen):
        say = None if progress is None else _prefixed(progress, f"{each.name} ({number + 1} of {len(chosen)})")
        try:
            rows.append(_studied(each, orders, size, place, repetitions, say))
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
    apart = None if len(drawn.devices) > 1 else each.device_of or None
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


def _where(rows: Sequence[StudiedWorkload], requested: torch.device) -> torch.device:
    """Return the measured device. A user's program runs on its own device, regardless of `device`."""
    if requested.type != "cpu" or not all(isinstance(row.workload, OwnProgram) for row in rows):
        return requested
    found = (device for row in rows for device in row.comparison.graph.devices if device.type != "cpu")
    return next(found, requested)


def _second_accelerator(first: torch.device) -> torch.device | None:
    """Return another accelerator of the same kind."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or first.type != accelerator.type or torch.accelerator.device_count() < 2:
        return None
    index = torch.accelerator.current_device_index() if first.index is None else first.index
    return torch.device(first.type, 0 if index else 1)


def _as_planned(policy: Policy | Choice, comparison: Comparison) -> Policy | Choice:
    """Return the policy for the simulation. A planning policy gets the measured order instead of a new plan."""
    if not isinstance(policy, Policy) or policy.plan is None:
        return policy
    order = comparison[policy.name].timeline.order
    return replace(policy, plan=lambda problem, ran: list(order))


def _prefixed(progress: Callable[[str], object], prefix: str) -> Callable[[str], object]:
    return lambda said: progress(f"{prefix}: {said}")


def usable_device(device: torch.device | str) -> torch.device:
    """Return the device if tensors with data can be created on it.

    Raises:
        ValueError: if they cannot.
    """
    try:
        found = torch.device(device)
        if found.type == "meta":
            raise ValueError("tensors on the device meta have no data to measure")
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"device {str(device)!r} cannot be used here: {why}") from error
    return found
