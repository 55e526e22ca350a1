"""The result of `ts.training`: findings, numbers and recorded steps of a loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Protocol, Self
from weakref import ReferenceType

import torch
from torch import nn

from ...inspector.capture.interrupt_safe_stack import Opened
from ...inspector.graph.source_lines import warn
from ...inspector.renderers import drawn, saved_page, text_of
from ...inspector.text.report import ShownAsFindings
from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.thread_state import unobserved
from ...inspector.validation import a_kind, expect_callable
from ..api.environment import Autocast
from ..memory.census import Place
from .findings import Finding, StepTime, TrainingTable, training_frame
from .leaks.step_tokens import AliveObjects
from .logger import Logger, expect_depth, numbers_of
from .module_columns import WatchedModels
from .norms import Norms, StepTable, TakenNorms, TensorNorms
from .step import TrainingStep

RecordedSteps = Sequence[TrainingStep] | Mapping[int, TrainingStep] | None

_WANTED = "the result of ts.record_steps() around the loop, or a dict from step numbers to recorded steps"


def recorded_steps(steps: RecordedSteps) -> dict[int, TrainingStep]:
    """Return the steps that were traced task by task; other steps have no backward to display.

    Raises:
        TypeError: the argument is not the result of a recording.
    """
    if steps is None:
        return {}
    if not isinstance(steps, Mapping | Sequence):
        raise TypeError(f"steps is {a_kind(steps)}; expected {_WANTED}")
    pairs = list(steps.items()) if isinstance(steps, Mapping) else list(enumerate(steps))
    for number, step in pairs:
        if type(number) is not int or not isinstance(step, TrainingStep):
            raise TypeError(f"steps has {a_kind(step)} at {number!r}; expected {_WANTED}")
    own = {number if isinstance(steps, Mapping) else step.number: step for number, step in pairs}
    return {number: step for number, step in own.items() if _is_followed(step)}


def _is_followed(step: TrainingStep) -> bool:
    try:
        return bool(step.run.graph.tasks)
    except ValueError:
        return False


_NO_STEPS = (
    "No step was seen, so almost nothing could be checked. Run the loop inside `with ts.training(...):`; a step ends "
    "when an optimizer of torch.optim steps in the same thread, or when you call training.step()."
)
_MOST_FINDINGS = 1_000
_MOST_MEMORY = 50_000  # numbers, five per sample
_NOT_FOR_USERS = frozenset(
    (
        *(
            "add",
            "alive",
            "autocast",
            "black_box_on",
            "called",
            "cells",
            "earlier_storages",
            "earlier_bytes",
            "found_inf",
            "is_written",
        ),
        *("clock", "limit", "marks", "module_classes", "note", "right", "sentences", "synchronize", "taken_norms"),
        *("taken_updates", "update", "watch_by", "watched", "writes"),
    )
)
_started: list[Training] = []  # started without a `with` block, and kept alive until they are stopped


class Watcher(Protocol):
    """The observer of a loop."""

    @property
    def number(self) -> int:
        """The number of the current step: the count of steps that have ended."""

    def start(self, stack: ExitStack) -> None:
        """Start watching; the stack removes all hooks."""

    def next_step(self) -> None:
        """End the current step."""

    def end(self, error: BaseException | None) -> None:
        """End watching. `error` is the exception that left the loop."""


class Training(ShownAsFindings):
    """A watched training loop. In a notebook it displays its steps and findings.

    Attributes:
        findings: the findings, in order. They stay after the block ends.
        notes: parts of the loop that could not be watched, with reasons.
        every: the interval of expensive measurements, in steps.
        writes: whether each in-place write is recorded.
        black_box: the folder for bad steps, or None.
        black_box_on: the occasions for keeping a step.
        limit: the bytes that kept steps may take.
        synchronize: whether the loop may wait for an accelerator once a step.
        found_inf: whether fused optimizers skip the updates of bad steps.
        watched: the models, and the names of their modules.
        called: the modules that have returned, by id; that of a freed module may be another's now.
        marks: marks for the metadata of each node that a module returns in this step.
        is_written: whether a logger gets each step.
        norms: gradient, weight and update norms, losses and learning rates of each step.
        memory: memory by category in some steps, see `memory_samples.HELD`.
        baselines: the memory that existed before these steps, by category, to the byte; see `memory_samples.BASELINE`.
        earlier_bytes, earlier_storages: bytes and places of storages that graphs of earlier steps keep, as far as
            searched.
        alive: the tensors and optimizers of the process, for observers that need them in the same step.
        taken_norms: norms of the gradients of the last backward, for observers called after they were computed.
        taken_updates: norms of the updates of the optimizer step that has just ended, if they were computed.
        autocast: the autocast state when the last outermost module was called.
        step_time: the mean time of a step by phase; None before the second step has ended.
        clock: the nanoseconds that have passed outside of the observers.
    """

    def __init__(
        self,
        every: int,
        writes: bool,
        black_box: str | None,
        limit: int,
        synchronize: bool,
        black_box_on: tuple[str, ...] = (),
    ) -> None:
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.every = every
        self.writes = writes
        self.black_box = black_box
        self.black_box_on = black_box_on
        self.limit = limit
        self.synchronize = synchronize
        self.watched = WatchedModels()
        self.called: dict[int, ReferenceType[nn.Module]] = {}
        self.marks: dict[str, object] = {}
        self.is_written = False
        self.found_inf = False
        self.norms = Norms()
        self.memory = StepTable(_MOST_MEMORY)
        self.baselines = StepTable(_MOST_MEMORY, dtype=torch.float64)  # float32 is exact to 16 MiB only
        self.earlier_bytes = 0
        self.earlier_storages: frozenset[Place] = frozenset()
        self.alive = AliveObjects()
        self.taken_norms: TakenNorms | None = None
        self.taken_updates: list[TensorNorms] = []
        self.autocast: Autocast = {}
        self.step_time: StepTime | None = None
        self.clock: Callable[[], int] = perf_counter_ns
        self._modules: dict[str, str] | None = None
        self._watcher: Watcher | None = None
        self._steps = 0
        self._opened: Opened | None = None

    def __dir__(self) -> list[str]:
        """Return the names for users; the rest serves the observers of the loop and the pages."""
        return sorted(set(super().__dir__()) - _NOT_FOR_USERS)

    def watch_by(self, watcher: Watcher) -> None:
        """Set the observer of the loop, when it is opened."""
        self._watcher = watcher

    def start(self) -> Self:
        """Start watching this thread, where no `with` block can be put around the loop. `stop` ends it.

        Raises:
            RuntimeError: it has been watched already.
        """
        _started.append(self)
        try:
            return self.__enter__()
        except BaseException:  # Ctrl-C, too
            self.stop()
            raise

    def stop(self) -> None:
        """Stop watching; the findings stay. Calling it again does nothing."""
        self._close(None, None, None)

    def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        opened, self._opened = self._opened, None
        watcher, self._watcher = self._watcher, None
        _started[:] = [each for each in _started if each is not self]
        if opened is None or watcher is None:
            return
        try:
            self._modules = self.module_classes
            watcher.end(error)
            self._steps = watcher.number
        finally:
            self.alive.clear()
            opened.close(kind, error, traceback)

    def __enter__(self) -> Self:
        if self._watcher is None:
            raise RuntimeError("this training has been watched already; create a new ts.training()")
        if self._opened is None:  # else it was started
            self._opened = Opened(self, self._watcher.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(kind, error, traceback)

    @property
    def steps(self) -> int:
        """The number of steps that have ended."""
        return self._steps if self._watcher is None else self._watcher.number

    def step(self) -> None:
        """End the current step. After the first call, steps no longer end automatically.

        Raises:
            RuntimeError: the loop is not being watched.
        """
        if self._opened is None or self._watcher is None:
            raise RuntimeError("this training is not being watched; call step() inside the `with` block")
        self._watcher.next_step()

    @property
    def modules(self) -> list[str]:
        """Paths of the models' modules: the models passed, or those seen."""
        return list(self.module_classes)

    @property
    def module_classes(self) -> dict[str, str]:
        """The class name of each module, by path."""
        if self._modules is not None:
            return self._modules
        return {path: type(module).__name__ for path, module in self.watched.modules()}

    def note(self, text: str) -> None:
        """Add a note about a part of the loop that could not be watched."""
        self.notes.append(text)
        _warn(text)

    def add(self, finding: Finding) -> None:
        """Report a finding of an observer, and keep it. If it is known, its last step is extended."""
        if self._goes_on(finding, anew=False):
            return
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append(finding)
            _warn(f"step {finding.step}: {finding}")

    def update(self, finding: Finding) -> None:
        """Like `add`, but a known finding gets the new text."""
        if not self._goes_on(finding, anew=True):
            self.add(finding)

    def _goes_on(self, finding: Finding, anew: bool) -> bool:
        """Return whether a finding is known; its last step, and optionally its text, are then updated."""
        for place, known in enumerate(self.findings):
            if known.subject == finding.subject:
                last = max(finding.step, finding.last_step or 0)
                self.findings[place] = replace(finding if anew else known, step=known.step, last_step=last)
                return True
        return False

    __repr__ = ShownAsFindings.__str__

    @property
    def sentences(self) -> list[str]:
        """The number of steps, the findings, and the parts that could not be watched."""
        state = "are being watched" if self._opened is not None else "were watched"
        if self.steps == 1:
            state = state.replace("are", "is").replace("were", "was")
        found = counted(len(self.findings), "finding") if self.findings else "nothing was found"
        unseen = [] if self.steps else [_NO_STEPS]
        return [f"{counted(self.steps, 'step')} {state}: {found}.", *unseen, *self.notes]

    @property
    def cells(self) -> list[list[str]]:
        rows = [["finding", "steps", "what"]]
        for each in self.findings:
            until = "" if each.last_step in (None, each.step) else f"–{each.last_step}"
            kind = each.kind if each.certain else f"{each.kind}?"
            rows.append([kind, f"{each.step}{until}", each.sentence])
        return rows

    def write_to(self, writer: Any, depth: int = 1) -> None:
        """Write norms, losses, learning rates and findings to a logger, as `ts.training(writer=...)` does during the
        loop.

        Args:
            writer, depth: as in `ts.training`. In a wandb run, each step is a row.

        Raises:
            TypeError, ValueError: the writer is not a logger, or depth is invalid. Also raises errors of the logger.
        """
        logger = Logger(writer)
        with unobserved():
            numbers = numbers_of(self.norms, expect_depth(depth))
        logger.begin()
        logger.write(numbers, self.findings, commit=True)

    def _repr_html_(self) -> str:
        with unobserved():
            return text_of("training as HTML", self)

    def save_html(self, path: str | Path, title: str = "Training loop") -> Path:
        """Write one HTML page that needs neither a kernel nor a network connection: losses, learning rates, a heat map
        of norms by
        module and step, and the findings. During the loop, the last steps are missing.

        Args:
            path: the file.
            title: the heading.
        """
        with unobserved():
            return saved_page("training as a page", path, self, title)

    def page(
        self,
        make_model: Callable[[], Any] | None = None,
        loss_of: Callable[[Any, Any], Any] | None = None,
        *,
        steps: RecordedSteps = None,
    ) -> Any:
        """Return the page as a notebook widget. Enter opens the backward of a kept step as a deck, by replaying the
        step;
        `page.open_step(37)` does the same.

        Args:
            make_model, loss_of: as in `ts.replay`; None: steps kept by the black box cannot be opened.
            steps: the result of `ts.record_steps()` opened with the loop's first step, or a dict from steps of this
                loop to recorded steps. Those that were traced task by task can be opened, with their memory.

        Raises:
            TypeError: an argument has the wrong type, or one of the two functions is missing.
            ModuleNotFoundError: anywidget is not installed.
        """
        if make_model is not None or loss_of is not None:
            expect_callable(make_model, 0, "make_model", "a function that makes the model")
            expect_callable(loss_of, 2, "loss_of", "a function of the model and the batch that returns the loss")
        with unobserved():
            return drawn("training as a widget", self, make_model, loss_of, recorded_steps(steps))

    def to_pandas(self, table: TrainingTable = "norms") -> Any:
        """Return the loop's data as a pandas.DataFrame. During the loop, the last steps are missing.

        Args:
            table: "norms", in long form, a row for each module and step: `step`, `last_step`, `module`,
                `gradient_norm`, and in every tenth step (`every=`) `weight_norm`, `update_norm`, `update_ratio`; for a
                matrix use `.pivot(index="step", columns="module", values="gradient_norm")`. "steps", a row for each
                step and optimizer: `step`, `last_step`, `optimizer`, `loss`, `learning_rate`, `skipped`, and the total
                `gradient_norm`. "findings", a row for each finding, with the attributes of `Finding`. Old steps are
                pooled: a row then covers `step` to `last_step`, with the largest of each number.

        Raises:
            ModuleNotFoundError: pandas is not installed.
            ValueError: the table is unknown.
        """
        with unobserved():
            return training_frame(self.norms, self.findings, table)


def _warn(text: str) -> None:
    """Warn while the loop runs, without raising if warnings are errors, which would end the loop."""
    with suppress(Warning):
        warn(f"ts.training: {text}")
