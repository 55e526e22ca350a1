"""Predictions and findings leave no trace: each verb runs on each program, and all state is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor

import tapescope as ts
from tapescope.engine.studies.workloads import WORKLOADS

from .programs import DISTRIBUTED, HANDLES, PROGRAMS, Program, built, functions_that_act, optimizer_in_a_hook
from .snapshot import Snapshot, differences, snapshot, state_of
from .verbs import LONG, PREDICTIONS, QUICK, auto

pytestmark = pytest.mark.filterwarnings("ignore")


def name_of(each: Callable[..., object]) -> str:
    return each.__name__


@pytest.fixture(autouse=True)
def _hooks_of_programs_are_removed() -> Iterator[None]:
    yield
    for handle in HANDLES:
        handle.remove()
    HANDLES.clear()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def assert_no_trace_of_a_prediction(program: Program, verb: Callable[[Tensor], object]) -> None:
    loss = program.make_loss()
    nodes = ts.graph(loss).nodes
    before = snapshot(program, nodes)
    verb(loss)
    assert differences(before, snapshot(program, nodes)) == []
    loss.backward()


def assert_no_trace_of_a_run(program: Program, verb: Callable[[Program], object]) -> None:
    counted = Snapshot.fromkeys(["what the program counts"])
    before = snapshot(program) | counted
    verb(program)
    assert differences(before, snapshot(program) | counted) == []


def state_after_steps(build: Callable[[], Program], verb: Callable[[Program], object] | None) -> dict[str, Any]:
    """After two further steps, before which and between which the verb is asked."""
    program = built(build)
    for _ in range(2):
        if verb is not None:
            verb(program)
        program.make_loss().backward()
    return state_of(program)


@pytest.mark.parametrize("verb", PREDICTIONS, ids=name_of)
@pytest.mark.parametrize("build", PROGRAMS, ids=name_of)
def test_predictions_run_nothing_of_the_program(build: Callable[[], Program], verb: Callable[[Tensor], object]) -> None:
    assert_no_trace_of_a_prediction(built(build), verb)


def test_a_search_for_an_order_runs_nothing_of_the_program() -> None:
    assert_no_trace_of_a_prediction(built(functions_that_act), auto)


@pytest.mark.parametrize("verb", QUICK, ids=name_of)
@pytest.mark.parametrize("build", PROGRAMS, ids=name_of)
def test_findings_put_back_what_the_program_changes(
    build: Callable[[], Program], verb: Callable[[Program], object]
) -> None:
    assert_no_trace_of_a_run(built(build), verb)


@pytest.mark.slow
@pytest.mark.parametrize("verb", LONG, ids=name_of)
@pytest.mark.parametrize("build", PROGRAMS, ids=name_of)
def test_verbs_that_run_the_program_often_put_back_what_it_changes(
    build: Callable[[], Program], verb: Callable[[Program], object]
) -> None:
    assert_no_trace_of_a_run(built(build), verb)


@pytest.mark.parametrize("verb", LONG, ids=name_of)
def test_of_reentrant_checkpoints_and_optimizers_in_hooks_nothing_stays(verb: Callable[[Program], object]) -> None:
    def both() -> Program:
        program = optimizer_in_a_hook()
        program.model.reentrant = True  # type: ignore[assignment]
        return program

    assert_no_trace_of_a_run(built(both), verb)


@pytest.mark.slow
@pytest.mark.parametrize("verb", [*QUICK, *LONG], ids=name_of)
@pytest.mark.parametrize("build", [each for each in PROGRAMS if each.__name__ != "functions_that_act"], ids=name_of)
def test_training_goes_on_as_if_nobody_had_asked(
    build: Callable[[], Program], verb: Callable[[Program], object]
) -> None:
    assert state_after_steps(build, verb) == state_after_steps(build, None)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("build", DISTRIBUTED, ids=name_of)
def test_predictions_run_nothing_in_a_process_group(build: Callable[[], Program]) -> None:
    for verb in PREDICTIONS:
        assert_no_trace_of_a_prediction(built(build), verb)


@pytest.mark.slow
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("verb", [*QUICK, *LONG], ids=name_of)
@pytest.mark.parametrize("build", DISTRIBUTED, ids=name_of)
def test_verbs_leave_no_trace_in_a_process_group(
    build: Callable[[], Program], verb: Callable[[Program], object]
) -> None:
    assert_no_trace_of_a_run(built(build), verb)
    assert state_after_steps(build, verb) == state_after_steps(build, None)


SMALLER = {"mlp_norm": {"layers": 20}, "resnet50": {"pixels": 32}, "resnet152": {"pixels": 32}}


def workload(name: str) -> Program:
    return Program(*WORKLOADS[name].build(device="cpu", **SMALLER.get(name, {})))


@pytest.mark.slow
@pytest.mark.parametrize("verb", PREDICTIONS, ids=name_of)
@pytest.mark.parametrize("name", WORKLOADS)
def test_predictions_of_ready_models_leave_no_trace(name: str, verb: Callable[[Tensor], object]) -> None:
    assert_no_trace_of_a_prediction(built(lambda: workload(name)), verb)


@pytest.mark.slow
@pytest.mark.parametrize("verb", [*QUICK, *LONG], ids=name_of)
@pytest.mark.parametrize("name", WORKLOADS)
def test_runs_of_ready_models_leave_no_trace(name: str, verb: Callable[[Program], object]) -> None:
    assert_no_trace_of_a_run(built(lambda: workload(name)), verb)
