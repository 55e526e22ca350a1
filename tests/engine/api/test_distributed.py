"""DistributedDataParallel on two processes: the same gradients under every order, and the truth about its buckets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import tapescope as ts
from tapescope.engine.schedule.ddp_buckets import Bucket, Reduction, reductions
from tapescope.tests.warm_python import WarmPython

from ..ranks import logs_of_ranks
from .ddp_program import VARIANTS

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo"
    ),
]

POLICIES = ("heap", "bfs", "dfs")


@pytest.fixture(scope="module")
def ranks(fresh_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the log of each rank."""
    program = Path(__file__).with_name("ddp_program.py")
    return logs_of_ranks(fresh_python, program, tmp_path_factory.mktemp("ddp"))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_reduced_as_without(ranks: list[dict[str, Any]], variant: str, policy: str) -> None:
    for rank in ranks:
        expected, found = rank[variant]["plain"], rank[variant][policy]
        for one, other in zip(found["steps"], expected["steps"], strict=True):
            for gradient, wanted in zip(one["gradients"], other["gradients"], strict=True):
                assert (gradient is None) == (wanted is None)
                if gradient is not None:
                    torch.testing.assert_close(torch.tensor(gradient), torch.tensor(wanted))
    assert ranks[0][variant][policy]["weights"] == ranks[1][variant][policy]["weights"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_trace_says_in_which_task_each_bucket_was_reduced(
    ranks: list[dict[str, Any]], variant: str, policy: str
) -> None:
    for rank in ranks:
        for number, step in enumerate(rank[variant][policy]["steps"]):
            started = [[index, started_by] for index, _, started_by in step["reductions"]]
            assert started == step["hook"]  # bucket and task, as DDP's own hook saw them
            if variant == "static" and number == 0:
                assert started == [[0, None]]
            else:
                assert None not in [completed_by for _, completed_by, _ in step["reductions"]]
            for task, completed, reduced in step["records"]:
                assert completed == [index for index, by, _ in step["reductions"] if by == task]
                assert reduced == [index for index, _, by in step["reductions"] if by == task]


def test_buckets_are_made_up_anew_after_the_policys_order(ranks: list[dict[str, Any]]) -> None:
    buckets = {policy: [step["buckets"] for step in ranks[0]["as it is"][policy]["steps"]] for policy in POLICIES}
    for first, second, third in buckets.values():
        assert len(first) == 1 < len(second)  # all in one, until DDP knows the order
        assert second == third
    assert buckets["bfs"][0] == buckets["heap"][0] and buckets["bfs"][1] != buckets["heap"][1]


def test_a_bucket_that_is_complete_waits_for_those_before_it(ranks: list[dict[str, Any]]) -> None:
    """With find_unused_parameters DDP keeps its first buckets, which do not suit every order."""
    late = [
        (completed_by, started_by)
        for step in ranks[0]["unused"]["dfs"]["steps"]
        for _, completed_by, started_by in step["reductions"]
        if completed_by != started_by
    ]
    assert late


def test_a_native_session_steps_through_a_backward_of_ddp(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for one, other in zip(rank["as it is"]["stepped"]["steps"], rank["as it is"]["plain"]["steps"], strict=True):
            torch.testing.assert_close(torch.tensor(one["gradients"][0]), torch.tensor(other["gradients"][0]))
            assert [[index, by] for index, _, by in one["reductions"]] == one["hook"]
    assert ranks[0]["as it is"]["stepped"]["weights"] == ranks[1]["as it is"]["stepped"]["weights"]


def test_two_modules_in_one_graph_have_buckets_of_their_own(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        wrappers = [wrapper for wrapper, _ in rank["two wrappers"]]
        assert wrappers == sorted(wrappers) and set(wrappers) == {0, 1}


def test_the_direct_engine_refuses(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "DistributedDataParallel" in rank["refusal"] and 'engine="native"' in rank["refusal"]


# In one process


def bucket(index: int, *tasks: int, missing: int = 0, wrapper: int = 0) -> Bucket:
    return Bucket(wrapper, index, tasks, missing, False, 4)


def test_when_buckets_are_complete_and_reduced() -> None:
    order = [9, 1, 3, 2, 4]
    never, unused = bucket(3, 4, missing=1), bucket(2)
    row = [bucket(0, 2), bucket(1, 1, 3), unused, never, bucket(4, 1)]
    assert [(each.completed_by, each.started_by) for each in reductions(row, order)] == [
        (2, 2),
        (3, 2),  # waits for bucket 0
        (1, 2),  # nobody fills it: complete with the first leaf
        (None, None),
        (1, None),
    ]
    others = [bucket(0, 4, wrapper=1), bucket(1, 3, wrapper=1)]
    assert reductions(row + others, order)[-2:] == (Reduction(others[0], 4, 4), Reduction(others[1], 3, 4))
    assert [each.completed_by for each in reductions(row, [9, 1])] == [None, None, 1, None, 1]  # inputs= stops here


def test_without_torch_distributed_a_trace_has_no_buckets_and_a_saved_one_keeps_them(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)
    run = ts.backward(x.exp().sum(), trace="off")
    assert run.trace is not None and run.trace.buckets == () == run.trace.reductions
    leaf = next(task.id for task in run.graph.tasks if task.is_leaf)
    trace = dataclasses.replace(run.trace, buckets=(bucket(0, leaf),))
    loaded = ts.load(dataclasses.replace(run, trace=trace).save(tmp_path / "run.json"))
    assert loaded.trace is not None and loaded.trace.buckets == (bucket(0, leaf),)
    record = loaded.trace.of(leaf)
    assert record is not None and record.completed == record.reduced == (bucket(0, leaf),)
