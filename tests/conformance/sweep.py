"""The checks of one entry, of several in as many processes, and what they add up to."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import torch
from checks import CHECKS, Check, findings
from databases import programs
from results import COMPARED, NOTHING, RAISES, Finding, Swept


def sweep(entry: str, limit: int | None, checks: Sequence[Check] = CHECKS) -> Swept:
    """Runs these checks of an entry, with at most `limit` samples of each variant and dtype."""
    ran: Counter[str] = Counter()
    outcomes: Counter[tuple[str, str]] = Counter()
    unequal: list[Finding] = []
    why = "it has no samples"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the databases' forwards warn of much
        for program in programs(entry, limit):
            try:
                forward = program.forward()
            except Exception as error:  # in-place on a dtype that can't hold the result, say
                ran[RAISES] += 1
                why = f"{type(error).__name__} in the forward: {error}"
                continue
            if not forward.outputs or not forward.leaves:
                ran[NOTHING] += 1
                why = "no output has a gradient"
                continue
            ran[COMPARED] += 1
            for found in findings(program, checks):
                outcomes[found.check, found.outcome] += 1
                if found.outcome not in ("equal", "same error"):
                    unequal.append(found)
    if not ran[COMPARED]:
        unequal.append(Finding(entry, "any", "not compared", why))
    return Swept(entry, ran, outcomes, tuple(unequal))


def sweep_all(
    entries: Iterable[str], limit: int | None, jobs: int, checks: Sequence[Check] = CHECKS
) -> Iterator[Swept]:
    """Sweep entries in `jobs` processes with one thread each; yield them as they finish."""
    if jobs == 1:
        _one_thread()
        yield from (sweep(entry, limit, checks) for entry in entries)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_one_thread) as pool:
        for done in as_completed([pool.submit(sweep, entry, limit, checks) for entry in entries]):
            yield done.result()


def _one_thread() -> None:
    torch.set_num_threads(1)  # the tensors are small, and a sum over several threads is not the same each time
