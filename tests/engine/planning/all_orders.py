"""All orders of a small backward, which what claims a best one or a bound is held against."""

from __future__ import annotations

from collections.abc import Iterator

from tapescope.engine.planning.scheduling_problem import Problem


def legal_orders(problem: Problem) -> Iterator[list[int]]:
    """All that are legal."""
    waits, order = list(problem.waits), list[int]()

    def extended(ready: list[int]) -> Iterator[list[int]]:
        if not ready:
            yield list(order)
        for task in ready:
            order.append(task)
            for next_task in problem.nexts[task]:
                waits[next_task] -= 1
            now = [next_task for next_task in problem.nexts[task] if not waits[next_task]]
            yield from extended([other for other in ready if other != task] + now)
            for next_task in problem.nexts[task]:
                waits[next_task] += 1
            order.pop()

    return extended(problem.start())
