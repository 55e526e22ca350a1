"""The memory of a backward as a value where it is told in blocks: `Problem.levels`, one task at a time."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import Problem


@dataclass(slots=True)
class State:
    """What some tasks have left. Not to be changed.

    Attributes:
        ran, ready: sets of tasks, as the bits of a number.
        level: bytes.
    """

    ran: int
    ready: int
    level: int


def awaited(problem: Problem) -> list[int]:
    """By task those for which it waits, as bits."""
    found = [0] * len(problem.nexts)
    for task in problem.tasks:
        for later in problem.nexts[task]:
            found[later] |= 1 << task
    return found


class BlockStates:
    """The states of a problem, one task apart. A task takes a microsecond for each block that it makes or uses."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._awaits = awaited(problem)
        self._makers = [sum(1 << task for task in set(makers)) for makers in problem.makers]
        self._users = [sum(1 << task for task in set(users)) for users in problem.users]

    def start(self) -> State:
        """Before the first task."""
        ready = sum(1 << task for task in self._problem.tasks if not self._awaits[task])
        return State(0, ready, self._problem.start_bytes)

    def run(self, state: State, task: int) -> tuple[State, int]:
        """The state after one more task, which is ready, and the highest level on the way, in bytes."""
        problem, before, after = self._problem, state.ran, state.ran | 1 << task
        level, ready = state.level, state.ready ^ 1 << task
        for block in problem.made_by[task]:
            if not self._makers[block] & before:
                level += problem.sizes[block]
        for block in problem.used_by[task]:
            if not self._users[block] & ~after:
                level -= problem.sizes[block]
        for later in problem.nexts[task]:
            if not self._awaits[later] & ~after:
                ready |= 1 << later
        return State(after, ready, level), max(state.level + problem.needs[task], level)

    def key(self, state: State) -> object:
        """Equal for states from which all goes on alike."""
        return state.ran

    def adds_in_place(self, state: State, place: int) -> bool:
        """Of blocks no more is known."""
        return True

    def pack(self, state: State) -> None:
        """There is nothing to forget."""
