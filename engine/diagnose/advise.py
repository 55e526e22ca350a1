"""`ts.advise`: changes that would speed up a program, each as code, checked and measured on the program itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ...inspector.capture.build_graph import read_graph
from ...inspector.capture.capture import capture
from ...inspector.graph.graph import Graph
from ...inspector.renderers import text_of
from ...inspector.text.progress import telling
from ...inspector.text.report import findings_rich, findings_text
from ...inspector.text.sizes_and_counts import counted, percent_text, share_text, size_text
from ...inspector.torch_private.compiled import keep_compiler_out
from ...inspector.validation import a_kind, expect_callable, expect_number
from ..api.backward import backward
from ..api.environment import Machine, this_machine
from ..api.make_loss import MakeLoss, expect_make_loss, real_loss_of
from ..api.profile import profile
from ..api.restore_state import AsFound
from ..api.time_backwards import Spread, wait_for
from ..memory.device_choice import device_of
from ..recording.peak_facts import Hint
from ..recording.peak_report import peak_report
from ..session.batching.find_batches import find_batches
from ..session.batching.product_groups import GroupRules, Groups
from .change_trial import LEAST_GAIN, Cost, Trial, try_change
from .find_ensembles import Ensemble, RefusedEnsemble, find_ensembles
from .generated_code import Change, changes
from .similar_modules import CallLog

if TYPE_CHECKING:
    from rich.console import RenderableType

Verdict = Literal["gain", "no gain", "refused", "memory"]

_STEPS = 5  # timed runs of the whole program
_LARGE_NS = 200_000  # time of an operation and its backward: many times the cost of launching both
_RIGHT = ("forward + backward", "peak", "differs by")


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One possible change.

    Attributes:
        title: the modules and the change, or the hint in short.
        verdict: "gain", "no gain" or "refused" for an ensemble; "memory" for a hint about the peak.
        facts: the findings, in sentences.
        code: the change to an ensemble, exactly as it ran: a module's text that uses the name `model` or `members`.
        trial: the check and the measurements of an ensemble's change.
        hint: the hint about memory.
    """

    title: str
    verdict: Verdict
    facts: tuple[str, ...]
    code: str | None = None
    trial: Trial | None = None
    hint: Hint | None = None

    @property
    def said(self) -> str:
        """The verdict with its figure: `gain 2.1 ×`, `no gain: 0.87 ×`, `refused`, `312 KiB`, or `no sure gain: 1.8 ×`
        if the times spread too widely to tell."""
        if self.hint is not None:
            return size_text(self.hint.nbytes)
        if self.trial is None or self.trial.after is None:
            return self.verdict
        speedup = self.trial.speedup
        if self.verdict == "gain":
            return f"gain {speedup:.2g} ×"
        return f"{'no sure gain' if speedup >= LEAST_GAIN else 'no gain'}: {speedup:.2g} ×"

    def __str__(self) -> str:
        text = f"{self.title}: {self.said}\n" + "\n".join(f"  {fact}" for fact in self.facts)
        return text if self.code is None else f"{text}\n\n{self.code}"


@dataclass(frozen=True, eq=False, repr=False)
class Advice:
    """Possible changes to a program, displayed as a table in a notebook.

    Attributes:
        graph: the graph, without its nodes.
        items: the changes: ensembles by gain, then memory hints by bytes, then refused ensembles.
        forward_ns, backward_ns: times of the whole program in nanoseconds, median and middle half.
        peak_bytes: the peak of the backward.
        forward_peak_bytes: the peak of the forward.
        machine: the machine that ran the measurements.
    """

    graph: Graph
    items: tuple[Item, ...]
    forward_ns: Spread
    backward_ns: Spread
    peak_bytes: int
    forward_peak_bytes: int
    machine: Machine

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __getitem__(self, number: int) -> Item:
        return self.items[number]

    @property
    def best(self) -> Item | None:
        """The change with the largest gain; None if no change gains."""
        return next((item for item in self.items if item.verdict == "gain"), None)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences about the program's cost, and about whether there is any advice. The items contain the advice."""
        forward, back = (_ms(spread.middle) for spread in (self.forward_ns, self.backward_ns))
        costs = (
            f"A forward takes {forward} and its backward {back}; the peaks are {size_text(self.forward_peak_bytes)} "
            f"and {size_text(self.peak_bytes)}. Measured on {self.machine}."
        )
        if self.items:
            return (costs,)
        return costs, (
            "Nothing to advise: no modules of equal structure with matrix products that could run as one, and no hint "
            "about memory."
        )

    @property
    def cells(self) -> list[list[str]]:
        """Return the table as rows of text, the headings first."""
        if not self.items:
            return [[]]
        return [["what", "verdict", *_RIGHT], *(_cells(item, self.peak_bytes) for item in self.items)]

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict per item, for `pandas.DataFrame(advice.records())`."""
        return [_record(item) for item in self.items]

    def __repr__(self) -> str:
        return f"<Advice: {', '.join(f'{item.title}: {item.said}' for item in self.items) or 'nothing'}>"

    def __str__(self) -> str:
        parts = [findings_text(self.sentences, self.cells, _RIGHT) if self.items else "\n".join(self.sentences)]
        parts += ["\n  ".join([f"{item.title}: {item.said}.", *item.facts]) for item in self.items]
        if self.best is not None and self.best.code is not None:
            parts.append(self.best.code)
        return "\n\n".join(parts)

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding
        from rich.syntax import Syntax
        from rich.text import Text

        if not self.items:
            return Group(*map(Text, self.sentences))
        parts: list[RenderableType] = [findings_rich(self.sentences, self.cells, _RIGHT)]
        for item in self.items:
            parts.append(Padding(Text.assemble((item.title, "bold"), f": {item.said}."), (1, 0, 0, 0)))
            parts.append(Padding(Text("\n".join(item.facts)), (0, 0, 0, 2)))
        if self.best is not None and self.best.code is not None:
            code = Syntax(self.best.code, "python", background_color="default").highlight(self.best.code)
            code.no_wrap, code.overflow = True, "ignore"  # wrapped lines could not be copied as code
            parts += [Text(), code]
        return Group(*parts)

    def _repr_html_(self) -> str:
        return text_of("advice as HTML", self)


def advise(
    make_loss: MakeLoss,
    model: nn.Module | None = None,
    *,
    rounds: int | None = None,
    progress: Callable[[str], object] | None = None,
) -> Advice:
    """Look for changes that would speed up a program or save memory, try each on the program, and report its gain.

    * Memory: the hints of `run.peak()`, with the share of zeros measured.
    * Ensembles (PyTorch #18157): modules of equal structure that do not depend on each other's results. The change is
      generated as code that uses `torch.func.stack_module_state` and `torch.vmap`, or `torch.baddbmm` for plain stacks
      of Linear layers. It runs on the members' own inputs, is checked against their outputs and gradients, and is
      timed beside them. It may gain nothing, because large products use the whole machine one by one (#59905).

    The program runs about ten times, and each change for about a second. Afterwards .grad, buffers, hooks, the random
    number generators of torch, Python and NumPy, and all tensors that the program modifies are restored (see
    `AsFound`). A parameter is such a tensor if a hook runs the optimizer's step.

    Args:
        make_loss: a function that runs the forward and returns the loss, one element. It must do the same each time.
        model: the module that the code calls `model`. None: the outermost module called.
        rounds: how often to time each change. None: for about a second.
        progress: a function that is called with a text before each stage. None: a progress line is shown on a terminal
            and in a notebook after two seconds.

    Known limitations: members must be modules. Members written out in code, or called inside a compiled region, a
    custom Function or torch.vmap, are not found. A TorchScript module is named, with the module to call instead.

    Raises:
        TypeError: if `make_loss` cannot be called or does not return a tensor, or `model` is not a module.
        ValueError: if the loss has more than one element, or `rounds` is below 1.
    """
    expect_make_loss(make_loss, "ts.advise")
    if not isinstance(model, nn.Module | None):
        raise TypeError(f"model must be a torch.nn.Module or None, got {a_kind(model)}")
    if progress is not None:
        expect_callable(progress, 1, "progress", "a function of one text, called before each stage")
    if rounds is not None:
        expect_number(rounds, int, "rounds", "the number of timed runs of each change, an integer")
    if rounds is not None and rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    with telling(progress, "measuring", timed=True) as tell, AsFound(make_loss, "ts.advise") as world:
        return _advise(world, world.make_loss, model, rounds, tell)


keep_compiler_out(advise)


def _advise(
    world: AsFound,
    make_loss: MakeLoss,
    model: nn.Module | None,
    rounds: int | None,
    tell: Callable[[str], object],
) -> Advice:
    tell("the program")
    world.watch()
    log = CallLog()
    with world.run(), capture(model, every_call=True), log.watched():
        loss = real_loss_of(make_loss())
    drawn = read_graph(loss, model)
    leaves = list(drawn.leaves.values())
    together = find_batches(drawn, GroupRules(min_fusion_size=2))
    scripted = list(_scripted(log, together))

    def run_backward(of: Tensor) -> None:
        with world.run(leaves):
            backward(of)

    with world.run(leaves):
        found, refused = find_ensembles(make_loss, log, drawn, model, run_backward)
    with world.run(leaves):
        counted_zeros = backward(real_loss_of(make_loss()), trace="cheap").trace
    device = device_of(drawn)
    drawn = replace(drawn, nodes=())
    del loss, log, leaves[:]
    tell("its memory")
    with world.run():
        loss = real_loss_of(make_loss())
        leaves += read_graph(loss).leaves.values()
        del loss
    with world.run(leaves):
        for leaf in leaves:
            leaf.grad = None  # the members are measured without .grad too, and zero_grad() leaves None
        run = profile(make_loss)
    assert run.timeline is not None
    assert run.footprints is not None
    same = len(run.graph) == len(drawn)
    report = peak_report(run.timeline, trace=counted_zeros if same else None)
    peaks = run.timeline.peak_bytes, run.timeline.forward_peak_bytes or 0
    memory = [
        Item(_short(hint.fact), "memory", (f"{hint.fact}.", _sentence(hint.advice)), hint=hint) for hint in report.hints
    ]
    del run, report
    tell("its time")
    forward, back = _times(world, make_loss, leaves, device)
    step = forward.middle + back.middle
    tried = []
    for ensemble in found:
        tell(ensemble.title)
        tried.append(_tried(ensemble, together, rounds, step))
    tried.sort(key=lambda ways: -_speedup(ways[0]))
    worked = [item for ways in tried for item in ways if item.verdict != "refused"]
    not_worked = [item for ways in tried for item in ways if item.verdict == "refused"]
    said = [Item(each.title, "refused", (_sentence(each.why),)) for each in (*refused, *scripted)]
    ordered = (*worked, *memory, *not_worked, *said)
    return Advice(drawn, ordered, forward, back, *peaks, this_machine(device))


def _scripted(log: CallLog, together: Groups) -> Iterator[RefusedEnsemble]:
    """Yield the TorchScript modules of a forward, outermost ones only, and the groups of products that they hide."""
    modules = {
        call.module: None
        for call in log.calls
        if isinstance(call.module, torch.jit.ScriptModule)
        and not (call.parent and isinstance(call.parent.module, torch.jit.ScriptModule))
    }
    hidden = f" {together.summary('backward')}" if together.backward else ""
    for module in modules:
        yield RefusedEnsemble(
            f"{module.original_name} (TorchScript)",
            "its modules are called inside TorchScript, where ts.advise cannot see them. Call the module from before "
            f"torch.jit.trace or torch.jit.script in make_loss.{hidden}".rstrip("."),
        )


def _tried(ensemble: Ensemble, together: Groups, rounds: int | None, step_ns: float) -> list[Item]:
    """Try every change to an ensemble; return the best first, with the facts that hold for all of them."""
    items = [_item(ensemble, change, rounds, step_ns) for change in changes(ensemble)]
    first, *others = sorted(items, key=lambda item: -_speedup(item))
    if first.trial is None or first.trial.after is None:
        return [first, *others]
    return [replace(first, facts=(*first.facts, *_of_all(ensemble, together))), *others]


def _item(ensemble: Ensemble, change: Change, rounds: int | None, step_ns: float) -> Item:
    title = f"{ensemble.title}, {change.title}"
    try:
        trial = try_change(ensemble, change, rounds)
    except Exception as error:  # the members' own code may raise anything under vmap
        said = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        return Item(title, "refused", (f"It raises {type(error).__name__}: {said}.",))
    if trial.before is not None and trial.after is not None:
        facts = tuple(_facts(ensemble, trial, trial.before, trial.after, step_ns))
        return Item(title, "gain" if trial.gains else "no gain", facts, change.code, trial)
    why = f"{trial.check.where} {'differ' if trial.check.where == 'outputs' else 'differs'} {_by(trial)}"
    if ensemble.differing:
        why += f"; the members' {', '.join(ensemble.differing)} differ, which the change does not account for"
    return Item(title, "refused", (_sentence(why),), trial=trial)


def _by(trial: Trial) -> str:
    if not isfinite(trial.check.share):
        return "and cannot be compared: one is missing or contains NaN"
    return f"by {percent_text(trial.check.share)}, of {percent_text(trial.check.tolerance)} allowed"


def _facts(ensemble: Ensemble, trial: Trial, before: Cost, after: Cost, step_ns: float) -> Iterator[str]:
    yield (
        f"Forward and backward of the members: {_spread(before.elapsed_ns)} one by one, {_spread(after.elapsed_ns)} as "
        f"one (medians and middle halves of {counted(trial.rounds, 'alternating round')}). The forward: "
        f"{_ms(before.forward_ns.middle)} → {_ms(after.forward_ns.middle)}; the backward: "
        f"{_ms(before.backward_ns.middle)} → {_ms(after.backward_ns.middle)}."
    )
    if not trial.steady:
        yield "The times spread widely because something else used the machine. Run this again when it is idle."
    each_ns = before.elapsed_ns.middle / max(1, sum(end - start for start, end in ensemble.ranges))
    if not trial.gains and each_ns > _LARGE_NS:
        yield (
            f"One of their operations takes {_ms(each_ns)} on average with its backward. Launching it costs only some "
            "microseconds, so fewer and larger operations save little (PyTorch #59905)."
        )
    if trial.gains and before.elapsed_ns.middle < step_ns:
        then = step_ns - before.elapsed_ns.middle + after.elapsed_ns.middle
        yield f"The whole program takes {_ms(step_ns)} now and would take about {_ms(then)} (calculated, not measured)."
    more = after.peak_bytes - before.peak_bytes
    than = "the same" if not more else f"{size_text(abs(more))} {'more' if more > 0 else 'less'}"
    yield (
        f"Their memory peaks at {size_text(before.peak_bytes)} one by one and at {size_text(after.peak_bytes)} as one, "
        f"{than}; the stacked parameters, {size_text(trial.parameter_bytes)}, replace the members' own."
    )
    yield f"Outputs and gradients, {trial.check.tensors:,} tensors, differ {_by(trial)}."


def _of_all(ensemble: Ensemble, together: Groups) -> Iterator[str]:
    """Yield the facts about an ensemble that hold for every change."""

    def member(task: int) -> int | None:
        number = together.graph.tasks[task].sequence_nr
        return next((at for at, (start, end) in enumerate(ensemble.ranges) if start <= number < end), None)

    parts = []
    for direction, found in (("forward", together.forward), ("backward", together.backward)):
        whole = [each for each in found if {member(task) for task in each.tasks} == set(range(len(ensemble)))]
        if whole:
            parts.append(f"{counted(len(whole), 'group')} in the {direction}")
    if parts:
        yield f"Their products form {' and '.join(parts)}, with one product of every member each; see ts.find_batches."
    if ensemble.differing:
        yield f"The members differ in {', '.join(ensemble.differing)}, which did not change the result."
    if ensemble.more:
        yield f"The same holds in {counted(len(ensemble.more), 'other place')}: {', '.join(ensemble.more)}."


def _speedup(item: Item) -> float:
    return item.trial.speedup if item.trial is not None and item.trial.after is not None else 0.0


def _times(
    world: AsFound, make_loss: MakeLoss, leaves: Sequence[Tensor], device: torch.device
) -> tuple[Spread, Spread]:
    """Measure the forwards and the backwards, in nanoseconds."""
    times: list[tuple[int, int]] = []
    devices = [] if device.type == "cpu" else [device]
    for _ in range(_STEPS):
        with world.run(leaves):
            wait_for(devices)
            started = perf_counter_ns()
            loss = make_loss()
            wait_for(devices)
            between = perf_counter_ns()
            loss.backward()  # type: ignore[no-untyped-call]
            wait_for(devices)
            times.append((between - started, perf_counter_ns() - between))
            del loss
    forward, back = zip(*times, strict=True)
    return Spread.of(forward), Spread.of(back)


def _cells(item: Item, peak_bytes: int) -> list[str]:
    if item.hint is not None:
        return [item.title, f"{item.said} of the peak", "", share_text(item.hint.nbytes, peak_bytes), ""]
    trial = item.trial
    if trial is None or trial.before is None or trial.after is None:
        return [item.title, item.said, "", "", "" if trial is None else percent_text(trial.check.share)]
    before, after = trial.before, trial.after
    return [
        item.title,
        item.said,
        f"{_ms(before.elapsed_ns.middle)} → {_ms(after.elapsed_ns.middle)}",
        f"{size_text(before.peak_bytes)} → {size_text(after.peak_bytes)}",
        percent_text(trial.check.share),
    ]


def _record(item: Item) -> dict[str, Any]:
    trial = item.trial
    record: dict[str, Any] = {
        "title": item.title,
        "verdict": item.verdict,
        "facts": " ".join(item.facts),
        "code": item.code,
        "bytes": None if item.hint is None else item.hint.nbytes,
        "speedup": None if trial is None or trial.after is None else trial.speedup,
        "difference": None if trial is None else trial.check.share,
        "tolerance": None if trial is None else trial.check.tolerance,
        "rounds": None if trial is None else trial.rounds,
    }
    for name in ("before", "after"):
        cost = None if trial is None else getattr(trial, name)
        for key in ("forward", "backward", "elapsed"):
            record[f"{name}_{key}_ns"] = None if cost is None else getattr(cost, f"{key}_ns").middle
        record[f"{name}_peak_bytes"] = None if cost is None else cost.peak_bytes
    return record


def _ms(nanoseconds: float) -> str:
    ms = nanoseconds / 1e6
    return f"{ms:.2f} ms" if ms < 10 else f"{ms:.1f} ms"


def _spread(spread: Spread) -> str:
    return f"{_ms(spread.middle)} ({_ms(spread.low).removesuffix(' ms')} to {_ms(spread.high).removesuffix(' ms')})"


def _short(fact: str) -> str:
    """Return the beginning of a fact, for a table."""
    return fact if len(fact) <= _SHORT else fact[: fact.rfind(" ", 0, _SHORT)].rstrip(",;:") + " …"


_SHORT = 72  # characters


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
