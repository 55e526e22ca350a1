"""The least peak as a problem for a constraint solver: OR-tools' CP-SAT, which the extra "exact" brings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING

from .lower_bound import lower_bound
from .problem import Problem
from .unavoidable_memory import CertainMemory, certain_memory

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from .exact import Exact

MOST_TASKS = 300
"""Of more tasks a minute proves nothing."""


def has_ortools() -> bool:
    """Whether the solver is installed."""
    return find_spec("ortools") is not None


def cp_sat(
    problem: Problem,
    ran: Sequence[int] = (),
    *,
    seconds: float = 10.0,
    workers: int = 1,
    hint: Sequence[int] | None = None,
) -> Exact:
    """Looks for an order with a low peak, and for a bound that none is below.

    The tasks get places, which all differ, after those of the tasks for which they wait. Each block of memory takes its
    bytes from the place after its maker to that of its last user, and each task besides, at its own place, what it
    needs itself; the least capacity that holds all of it is looked for. That is the formulation of OLLA (Steiner et
    al., 2022) in intervals. Told is only what is certain in every order (`certain_memory`): so the solver's bound
    holds, and what its order really takes is simulated. Practical to some hundred tasks.

    Args:
        problem: the backward.
        ran: the tasks with which the order starts.
        seconds: how long the solver may take.
        workers: how many threads it has. With one it does the same each time, if it comes to an end.
        hint: an order to start from. The result is never worse; None: PyTorch's own.

    Raises:
        ModuleNotFoundError: ortools is not installed.
        ValueError: there are more than `MOST_TASKS` tasks.
    """
    from .exact import Exact

    if not has_ortools():
        raise ModuleNotFoundError(
            "CP-SAT is a part of OR-tools: pip install 'tapescope[exact]', or pip install ortools"
        )
    if len(problem.tasks) > MOST_TASKS:
        raise ValueError(
            f"CP-SAT proves nothing of {len(problem.tasks):,} tasks in any useful time; use ts.plan's search"
        )
    began = perf_counter()
    gone = set(ran)
    known = [*ran, *(task for task in hint or problem.heap_order if task not in gone)]
    peak, bound = problem.peak_bytes(known), lower_bound(problem).nbytes
    solved = _solve(_Model(problem, ran, known, bound, peak), known, seconds, workers) if bound < peak else None
    if solved is not None:
        order, proven = solved
        bound = max(bound, proven)
        if order and (found := problem.peak_bytes(order)) < peak:
            known, peak = order, found
    bound = min(bound, peak)
    return Exact(tuple(known), peak, bound, bound == peak, 0, perf_counter() - began)


class _Model:
    """The problem in the solver's terms. Sizes are divided by what divides them all."""

    def __init__(self, problem: Problem, ran: Sequence[int], known: Sequence[int], least: int, most: int) -> None:
        from ortools.sat.python import cp_model

        self.model = model = cp_model.CpModel()
        count = self._end = len(problem.tasks)
        self.places = places = {task: model.new_int_var(0, count - 1, "") for task in problem.tasks}
        model.add_no_overlap([model.new_fixed_size_interval_var(place, 1, "") for place in places.values()])
        for task in problem.tasks:
            for later in problem.nexts[task]:
                model.add(places[task] < places[later])
        for place, task in enumerate(ran):
            model.add(places[task] == place)
        memory = certain_memory(problem, list(known))
        sizes = [(block, size) for block in memory.blocks for size in {block.nbytes, block.grad_bytes}]
        self.unit = math.gcd(*(size for _, size in sizes), *(memory.needs[task] for task in problem.tasks)) or 1
        self._intervals: list[cp_model.IntervalVar] = []
        self._demands: list[int] = []
        for task in problem.tasks:
            self._take(memory.needs[task], places[task], places[task] + 1)
        summed = {arrival.block for found in memory.sums.values() for arrival in found.arrivals}
        for number in range(len(memory.blocks)):
            if number not in summed and number not in memory.sums:  # whose block a sum is, depends on the order
                self._add_block(memory, number)
        self.peak = model.new_int_var(-(-least // self.unit), -(-most // self.unit), "")
        model.add_cumulative(self._intervals, self._demands, self.peak)
        model.minimize(self.peak)

    def _take(self, nbytes: int, start: cp_model.LinearExprT, end: cp_model.LinearExprT) -> None:
        if nbytes:
            size = self.model.new_int_var(0, self._end + 1, "")
            self._intervals.append(self.model.new_interval_var(start, size, end, ""))
            self._demands.append(nbytes // self.unit)

    def _add_block(self, memory: CertainMemory, number: int) -> None:
        """A block, from the end of its first maker on to the end of its last user."""
        block = memory.blocks[number]
        made = [self.places[task] for task in block.makers if task in self.places]
        if len(made) < len(block.makers):
            return  # a task that does not run would make it
        used = [self.places[task] for task in {*block.users, *block.passers} if task in self.places]
        start: cp_model.LinearExprT = self._one_of(made, first=True) + 1 if made else 0
        forever = block.nbytes if block.stays else block.grad_bytes
        self._take(forever, start, self._end + 1)
        if used:
            self._take(block.nbytes - forever, start, self._one_of(used, first=False) + 1)

    def _one_of(self, places: Sequence[cp_model.IntVar], *, first: bool) -> cp_model.IntVar:
        if len(places) == 1:
            return places[0]
        found = self.model.new_int_var(0, self._end - 1, "")
        if first:
            self.model.add_min_equality(found, places)
        else:
            self.model.add_max_equality(found, places)
        return found


def _solve(model: _Model, hint: Sequence[int], seconds: float, workers: int) -> tuple[list[int], int] | None:
    """The order found, if one was, and the bound; None if there was no time for either."""
    from ortools.sat.python import cp_model

    for place, task in enumerate(hint):
        model.model.add_hint(model.places[task], place)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(seconds, 0.01)
    solver.parameters.num_workers = workers
    try:
        status = solver.solve(model.model)
    except IndexError:  # of the solver's own: ortools 9.15 fails on a few small models
        return None
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    bound = math.ceil(solver.best_objective_bound - 1e-6) * model.unit
    return sorted(model.places, key=lambda task: solver.value(model.places[task])), bound
