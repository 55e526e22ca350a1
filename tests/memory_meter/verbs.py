"""Each verb's memory figures for a program, and the meter's count for the same program."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

import tapescope as ts
from tapescope.engine.memory.baseline import OLDER_THAN_RECORDING, constants_sentence
from tapescope.engine.memory.estimates import estimate_sentence

from .meter import Meter
from .programs import PROGRAMS, Builder, Program

RECORDED, MOST_STEPS = 4, 9  # what `ts.profile_step` runs at most


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of memory and what it is held against, in bytes.

    Attributes:
        not_counted: bytes that the verb names beside its figure and that may be on top.
        flag: what the verb says about its figure being an estimate; "" where it gives it as exact.
    """

    said: int
    held: int
    flag: str = ""
    not_counted: int = 0

    @property
    def off(self) -> float:
        return (self.said - self.held) / self.held


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of a program and a verb: the figure with the largest error.

    Attributes:
        outcome: "exact", "flagged" (an estimate that says in which direction it may be off, rightly), "wrong",
            "refused", or "error" (any other exception).
        why: the flag or the error.
    """

    program: str
    verb: str
    outcome: str
    why: str = ""
    said: int = 0
    held: int = 0


@contextmanager
def started(build: Builder) -> Iterator[tuple[Program, Meter]]:
    """The program, made above the base of a meter."""
    torch.manual_seed(0)
    meter = Meter()
    program = build()
    try:
        yield program, meter
    finally:
        program.close()


@contextmanager
def warmed_up(build: Builder) -> Iterator[Program]:
    """A program that has run twice, so that it and the libraries below it have taken what they keep."""
    with started(build) as (program, _):
        for _ in range(2):
            program.make_loss().backward()
            fresh(program)
        yield program


def fresh(program: Program) -> None:
    """Before each backward that is compared there is neither .grad nor a cast in autocast's cache, and the random
    numbers are the same."""
    for each in program.leaves:
        each.grad = None
    torch.clear_autocast_cache()
    torch.manual_seed(1)


@cache
def held_by_backward(build: Builder, policy: object = None) -> int:
    """Return the most bytes, allocated since before its forward, that a backward holds; PyTorch's own if no policy is
    given."""

    def backward(loss: Tensor) -> None:
        if policy is None:
            loss.backward(retain_graph=program.retain_graph)
        else:
            ts.backward(loss, policy=policy, trace="off")

    with warmed_up(build) as program:
        backward(program.make_loss())  # the first one in a process by a policy takes what it keeps
        fresh(program)
        meter = Meter()
        loss = program.make_loss()
        return meter.highest(lambda: backward(loss)) - program.model_bytes


@cache
def held_by_forward(build: Builder) -> int:
    """Return the most bytes, allocated by it, that a forward holds."""
    with warmed_up(build) as program:
        meter = Meter()
        losses = []  # which it returns
        return meter.highest(lambda: losses.append(program.make_loss())) - program.model_bytes


@cache
def held_by_steps(build: Builder) -> list[int]:
    """Return the most bytes, allocated since before the program, that each of the first steps holds."""
    with started(build) as (program, _):
        program.train()  # libraries take what they keep
    del program
    with started(build) as (program, meter):
        torch.manual_seed(1)
        return [meter.highest(program.train) for _ in range(MOST_STEPS)]


def of_profile(build: Builder) -> Iterator[Figure]:
    held = held_by_backward(build)
    with warmed_up(build) as program:
        run = ts.profile(program.make_loss, retain_graph=program.retain_graph)
        yield Figure(run.peak_bytes, held, estimate_sentence(run.timeline.estimates))
        forward = run.peak(phase="forward")
    yield Figure(forward.nbytes, held_by_forward(build))
    yield Figure(sum(record["bytes"] for record in forward.records()), held_by_forward(build))


def of_measured_backward(build: Builder) -> Iterator[Figure]:
    """`memory=True` finds a forward that has run."""
    held = held_by_backward(build)
    with warmed_up(build) as program:
        run = ts.backward(program.make_loss(), memory=True, retain_graph=program.retain_graph)
        yield Figure(run.peak_bytes, held, flag_of_timeline(run.timeline), run.timeline.constant_bytes)


def flag_of_timeline(timeline: ts.types.Timeline) -> str:
    """The reasons why its peak is an estimate, and the bytes that may be on top."""
    sentences = estimate_sentence(timeline.estimates), constants_sentence(timeline.constant_bytes)
    return " ".join(filter(None, sentences))


def of_simulate(build: Builder) -> Iterator[Figure]:
    held = held_by_backward(build)
    for forward in ts.capture(), nullcontext():
        with warmed_up(build) as program:
            with forward:
                loss = program.make_loss()
            found = ts.simulate(ts.graph(loss), retain_graph=program.retain_graph)
            yield Figure(found.peak_bytes, held, flag_of_timeline(found), found.constant_bytes)


def of_plan(build: Builder) -> Iterator[Figure]:
    with warmed_up(build) as program, ts.capture():
        plan = ts.plan_order(program.make_loss())
    held, flag = held_by_backward(build, plan.policy), " ".join(plan.notes)
    yield Figure(plan.best.peak_bytes, held, flag)
    if plan.bound_bytes > held:
        yield Figure(plan.bound_bytes, held, flag)


def of_compare(build: Builder) -> Iterator[Figure]:
    held = {name: held_by_backward(build, name) for name in ("heap", "bfs")}
    with warmed_up(build) as program:
        for row in ts.compare(program.make_loss, [*held], repetitions=1).rows:
            yield Figure(row.peak_bytes, held[row.policy])
            if row.predicted is not None:
                yield Figure(row.predicted.peak_bytes, held[row.policy], estimate_sentence(row.predicted.estimates))
            if row.dry_run_bytes is not None:
                yield Figure(row.dry_run_bytes, held[row.policy], estimate_sentence(row.dry_run_estimates))


def of_record_steps(build: Builder) -> Iterator[Figure]:
    """From the first step on, and of a training that has gone on for some steps."""
    held = held_by_steps(build)
    for before in 0, 2:
        with started(build) as (program, _):
            torch.manual_seed(1)
            for _ in range(before):
                program.train()
            with ts.record_steps(RECORDED) as steps:
                for _ in range(RECORDED + 1):
                    program.train()
            for step in steps:
                yield Figure(step.peak_bytes, held[before + step.number], flag_of(step, program))


def of_profile_step(build: Builder) -> Iterator[Figure]:
    held = held_by_steps(build)
    with started(build) as (program, _):
        torch.manual_seed(1)
        step = ts.profile_step(program.train)
        yield Figure(step.peak_bytes, held[step.number], flag_of(step, program))


def flag_of(step: ts.types.TrainingStep, program: Program) -> str:
    """The line on what is older than the recording, which each step has; it excuses programs that have such."""
    if not program.has_older:
        return ""
    return " ".join(each for each in step.sentences if each == OLDER_THAN_RECORDING)


def of_fits(build: Builder) -> Iterator[Figure]:
    with started(build) as (program, _):
        arguments = program.fits
    del program
    if arguments is None:
        return
    make_model, make_batch, make_optimizer, loss_of = arguments
    fit = ts.fits(make_model, make_batch, make_optimizer, "1GiB", loss_of)
    yield Figure(fit.peak_bytes, held_by_steps(build)[1], estimate_sentence(fit.estimates))


VERBS: dict[str, Callable[[Builder], Iterator[Figure]]] = {
    "profile": of_profile,
    "memory=True": of_measured_backward,
    "simulate": of_simulate,
    "plan": of_plan,
    "compare": of_compare,
    "record_steps": of_record_steps,
    "profile_step": of_profile_step,
    "fits": of_fits,
}

_DIRECTIONS = (
    (re.compile(r"may be higher\.|at least this much"), lambda figure: figure.said <= figure.held),
    (re.compile(r"may be lower\."), lambda figure: figure.said >= figure.held),
    (re.compile(r"may be higher or lower\."), lambda figure: True),
)


def judged(program: str, verb: str, figure: Figure) -> Cell:
    """A figure has to be exact, or to say in which direction it may be off."""
    if figure.said == figure.held:
        outcome = "exact"
    elif figure.said <= figure.held <= figure.said + figure.not_counted or any(
        word.search(figure.flag) and holds(figure) for word, holds in _DIRECTIONS
    ):
        outcome = "flagged"
    else:
        outcome = "wrong"
    return Cell(program, verb, outcome, figure.flag, figure.said, figure.held)


def cell(program: str, verb: str) -> Cell | None:
    """Return a verb's result for a program; None if the verb does not apply to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            figures: Sequence[Figure] = [*VERBS[verb](PROGRAMS[program])]
        except NotImplementedError as error:
            return Cell(program, verb, "refused", str(error))
        except Exception as error:
            return Cell(program, verb, "error", f"{type(error).__name__}: {error}")
    cells = [judged(program, verb, each) for each in figures]
    order = "exact", "flagged", "wrong"
    return max(cells, key=lambda each: (order.index(each.outcome), abs(each.said - each.held)), default=None)
