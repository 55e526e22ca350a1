"""States of memory, one task apart: the levels of the simulation, whatever the order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

import tapescope as ts
from tapescope.engine.memory.task_memory import Footprints
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.engine.planning.search_state import MemoryState, MemoryStates
from tapescope.engine.planning.simulate import schedule, simulate
from tapescope.engine.studies.workloads import workload

from ..backward_programs import random_policy
from ..memory_programs import Program
from .any_backward import random_backward
from .problems import BlockStates, random_problem


def check(footprints: Footprints, order: Sequence[int]) -> None:
    """Level and highest moment of each task; states are forgotten and counted again on the way."""
    timeline = simulate(footprints.graph, order, footprints)
    states = MemoryStates(Problem(footprints.graph, footprints, order))
    state = states.start()
    assert state.level == timeline.start_bytes
    for place, task in enumerate(order):
        assert state.ready >> task & 1
        if place % 3 == 1:
            state.holders = None
        state, highest = states.run(state, task)
        assert highest == timeline.task_peaks[place]
        assert state.level == timeline.levels[timeline.starts[place + 1]]
    assert not state.ready


def test_of_random_footprints_each_task_changes_the_level_as_in_the_simulation() -> None:
    for seed in range(150):
        footprints = random_backward(seed)
        for number in range(3):
            check(footprints, schedule(footprints.graph, random_policy(number)))


@pytest.mark.parametrize("seed", range(8))
def test_of_measured_programs_too(seed: int) -> None:
    program = Program(seed, graded=seed % 3 == 1, kept=seed % 2 == 1, regions=seed % 4 == 3, hooked=seed % 4 == 0)
    program.reset()
    footprints = ts.profile(program.make_loss).footprints
    assert footprints is not None
    for number in range(3):
        check(footprints, schedule(footprints.graph, random_policy(number)))


def test_a_backward_may_leave_tasks_out() -> None:
    footprints = random_backward(2)
    order = schedule(footprints.graph, "heap")
    ends = {task for task in order if footprints.graph.out_edges[task]}
    check(footprints, [task for task in order if task in ends])


def after(states: MemoryStates, order: Sequence[int]) -> MemoryState:
    state = states.start()
    for task in order:
        state, _ = states.run(state, task)
    return state


def test_which_way_a_sum_came_about_is_forgotten() -> None:
    _, make_loss = workload("linear50").build(uses=6, width=8)
    problem = Problem(ts.graph(make_loss()))
    states = MemoryStates(problem)
    orders = [schedule(problem.graph, random_policy(seed)) for seed in range(10)]
    whole = {states.key(after(states, order)) for order in orders}
    assert len(whole) == 1
    weight = max(problem.tasks, key=lambda task: len(problem.graph.in_edges[task]))
    states_before_it = {states.key(after(states, [task for task in order if task != weight])) for order in orders}
    assert len(states_before_it) == 1


def test_states_of_blocks_have_the_levels_of_the_problem() -> None:
    for seed in range(50):
        problem = random_problem(8, seed)
        order, ready = [], problem.start()
        states = BlockStates(problem)
        state, highest = states.start(), problem.start_bytes
        draw = random.Random(seed)
        while ready:
            order.append(draw.choice(ready))
            state, reached = states.run(state, order[-1])
            highest = max(highest, reached)
            ready = [task for task in problem.tasks if state.ready >> task & 1]
        assert highest == problem.levels(order)[0]
