"""The result of `ts.training`: findings, numbers and recorded steps of a loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from ...inspector.capture.interrupt_safe_stack import Opened
from ...inspector.graph.source_lines import warn
from ...inspector.renderers import drawn, saved_page, text_of
from ...inspector.text.report import ShownAsFindings
from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.thread_state import unobserved
from ...inspector.validation import a_kind, expect_callable
from ..api.environment import Autocast
from ..memory.census import Place
from .findings import Finding, TrainingTable, training_frame
from .logger import Logger, expect_depth, numbers_of
from .module_columns import WatchedModels
from .norms import Norms, StepTable, TakenNorms
from .step import TrainingStep

RecordedSteps = Sequence[TrainingStep] | Mapping[int, TrainingStep] | None

_WANTED = "ts.record_steps() that was opened with the loop, or a dict from steps of the loop to recorded ones"


def recorded_steps(steps: RecordedSteps) -> dict[int, TrainingStep]:
    """Those that were followed task by task: of no other is there a backward to be shown.

    Raises:
        TypeError: these are no recorded steps.
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
    "No step was seen, so next to nothing could be looked at: the loop runs inside of `with ts.training(...):`, and a "
    "step is told by an optimizer of torch's that steps in the same thread, or by training.step() at its end."
)
_MOST_FINDINGS = 1_000
_MOST_MEMORY = 50_000  # numbers, five a step that is looked at
_NOT_FOR_USERS = frozenset(
    (
        *("add", "autocast", "black_box_on", "cells", "earlier_storages", "earlier_bytes", "found_inf", "is_written"),
        *("limit", "module_classes", "note", "right", "sentences", "synchronize", "taken_norms", "update"),
        *("watch_by", "watched", "writes"),
    )
)
_started: list[Training] = []  # which watch until they are stopped, also where nobody else keeps them


class Watcher(Protocol):
    """Who watches the loop."""

    @property
    def number(self) -> int:
        """Of the step that is under way; how many have ended."""

    def start(self, stack: ExitStack) -> None:
        """Begins; what is put in place is taken away by the stack."""

    def next_step(self) -> None:
        """A step ends here."""

    def end(self, error: BaseException | None) -> None:
        """All is over. `error`: by which the loop was left."""


class Training(ShownAsFindings):
    """A training loop that is watched, or was. In a notebook it shows its steps and what was found.

    Attributes:
        findings: what was found, first ones first. They stay when the block ends.
        notes: what could not be watched, and why.
        every: how often what is dear is looked at, in steps.
        writes: whether each write in place is noted.
        black_box: the folder in which bad steps are put down; None: none is.
        black_box_on: on what.
        limit: how many bytes these may take.
        synchronize: whether the loop may be made to wait for an accelerator once a step.
        found_inf: whether fused optimizers leave the updates of bad steps out.
        watched: the models, and what their parts are called.
        is_written: whether a logger is told of each step.
        norms: of gradients, weights and updates, losses and learning rates: numbers of each step.
        memory: what the loop held in some steps, see `memory_samples.HELD`.
        earlier_bytes, earlier_storages: what graphs of earlier steps keep, as far as it was looked at: bytes, and the
            places of these storages.
        taken_norms: of the gradients that the last backward left, for parts that are told of its end after they were
            taken.
        autocast: as it was where the last outermost module was called.
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
        self.is_written = False
        self.found_inf = False
        self.norms = Norms()
        self.memory = StepTable(_MOST_MEMORY)
        self.earlier_bytes = 0
        self.earlier_storages: frozenset[Place] = frozenset()
        self.taken_norms: TakenNorms | None = None
        self.autocast: Autocast = {}
        self._modules: dict[str, str] | None = None
        self._watcher: Watcher | None = None
        self._steps = 0
        self._opened: Opened | None = None

    def __dir__(self) -> list[str]:
        """Return the names for users; the rest serves the observers of the loop and the pages."""
        return sorted(set(super().__dir__()) - _NOT_FOR_USERS)

    def watch_by(self, watcher: Watcher) -> None:
        """Who watches the loop, once it is opened."""
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
            opened.close(kind, error, traceback)

    def __enter__(self) -> Self:
        if self._watcher is None:
            raise RuntimeError("this training has been watched already; make another ts.training()")
        if self._opened is None:  # else it was started
            self._opened = Opened(self, self._watcher.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(kind, error, traceback)

    @property
    def steps(self) -> int:
        """How many steps have ended."""
        return self._steps if self._watcher is None else self._watcher.number

    def step(self) -> None:
        """A step ends here. From the first call on, none ends by itself.

        Raises:
            RuntimeError: nothing is watched now.
        """
        if self._opened is None or self._watcher is None:
            raise RuntimeError("this training is not being watched: step() is for inside of the `with` block")
        self._watcher.next_step()

    @property
    def modules(self) -> list[str]:
        """The paths of the models' modules; those given, or those seen."""
        return list(self.module_classes)

    @property
    def module_classes(self) -> dict[str, str]:
        """By path of each of them the name of its class."""
        if self._modules is not None:
            return self._modules
        return {path: type(module).__name__ for path, module in self.watched.modules()}

    def note(self, text: str) -> None:
        """What could not be watched, in a sentence."""
        self.notes.append(text)
        _warn(text)

    def add(self, finding: Finding) -> None:
        """What a part has found: told at once, and kept. The same again says that it went on until now."""
        if self._goes_on(finding, anew=False):
            return
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append(finding)
            _warn(f"step {finding.step}: {finding}")

    def update(self, finding: Finding) -> None:
        """As `add`, but what is known of the same is said anew, as it is now."""
        if not self._goes_on(finding, anew=True):
            self.add(finding)

    def _goes_on(self, finding: Finding, anew: bool) -> bool:
        """Whether it is of the same as one that is there, which then went on until now, in its words or these."""
        for place, known in enumerate(self.findings):
            if known.subject == finding.subject:
                last = max(finding.step, finding.last_step or 0)
                self.findings[place] = replace(finding if anew else known, step=known.step, last_step=last)
                return True
        return False

    __repr__ = ShownAsFindings.__str__

    @property
    def sentences(self) -> list[str]:
        """How many steps there were, what was found, and what could not be watched."""
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
        """Writes norms, losses, learning rates and findings to a logger, as `ts.training(writer=...)` does meanwhile.

        Args:
            writer, depth: as there. In a run of wandb each step is a row of its own.

        Raises:
            TypeError, ValueError: that is no logger, or no depth. What the logger raises is raised.
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
        """Writes one HTML page that needs neither a kernel nor a network: losses, learning rates, a heat map of norms
        by module and step, and the findings. While the loop runs the last steps are not in it yet.

        Args:
            path: where to.
            title: its heading.
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
        """The page as a widget of a notebook, in which Enter opens the backward of a kept step in its place, as a deck
        that runs: the step is replayed. `page.open_step(37)` does the same.

        Args:
            make_model, loss_of: as for `ts.replay`; None: steps that the black box keeps are not opened.
            steps: of `ts.record_steps()` that was opened with the loop's first step; or a dict from steps of this loop
                to recorded ones. Those that were followed task by task open, too, with their memory.

        Raises:
            TypeError: an argument is no such thing, or one of both functions is missing.
            ModuleNotFoundError: anywidget is missing.
        """
        if make_model is not None or loss_of is not None:
            expect_callable(make_model, 0, "make_model", "a function that makes the model")
            expect_callable(loss_of, 2, "loss_of", "a function that takes model and batch and gives the loss")
        with unobserved():
            return drawn("training as a widget", self, make_model, loss_of, recorded_steps(steps))

    def to_pandas(self, table: TrainingTable = "norms") -> Any:
        """What is known of the loop as a pandas.DataFrame. While the loop runs the last steps are not in it yet.

        Args:
            table: "norms", in long form, a row for each module and step: `step`, `last_step`, `module`,
                `gradient_norm`, and every tenth step (`every=`) `weight_norm`, `update_norm`, `update_ratio`; a matrix
                is `.pivot(index="step", columns="module", values="gradient_norm")`. "steps", a row for each step and
                optimizer: `step`, `last_step`, `optimizer`, `loss`, `learning_rate`, `skipped`, `gradient_norm` of the
                whole loop. "findings", a row for each finding, with the attributes of `Finding`. Old steps are pooled:
                a row is then of `step` to `last_step`, with the largest of each number.

        Raises:
            ModuleNotFoundError: pandas is not installed.
            ValueError: there is no such table.
        """
        with unobserved():
            return training_frame(self.norms, self.findings, table)


def _warn(text: str) -> None:
    """Says it while the loop runs. Warnings that are made errors would be raised into the loop."""
    with suppress(Warning):
        warn(f"ts.training: {text}")
