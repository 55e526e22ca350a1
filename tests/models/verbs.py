"""The verbs that run on each third-party model, and their expected results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from judge import WrongError, difference, gradients_of, held, nothing_changes, nothing_left, tolerated
from results import Cell
from stranger import Stranger
from torch import Tensor, nn

import tapescope as ts

POLICIES = ("heap", "bfs", "dfs", "lpmf")
"""PyTorch's own, whose gradients are equal to the bit, two others, and one that goes by memory."""

_SEARCH_S = 0.2
_BUDGET = 0.5  # of the plain peak: any time is paid for it, so that something is recomputed


def graph(stranger: Stranger) -> Cell:
    """The leaves of the graph are the parameters that get a gradient; it can be drawn."""
    expected, _ = gradients_of(stranger, stranger.step)
    stranger.put_back()
    with nothing_left():
        with ts.capture():
            loss = stranger.make_loss()
        found = ts.graph(loss, stranger.model)
        leaves = set(map(id, found.leaves.values()))
        named = {name for name, each in stranger.model.named_parameters() if id(each) in leaves}
        if missing := {name for name, each in expected.items() if each is not None} - named:
            raise WrongError(f"not among the leaves: {sorted(missing)[:3]}")
        if not found.to_svg().startswith("<svg"):
            raise WrongError("is not drawn")
        loss.backward()
    return Cell("right", f"{len(found.tasks)} tasks")


def gradients(stranger: Stranger, engine: Any) -> Cell:
    """Under heap equal to PyTorch's to the bit, in other orders but for rounding; buffers and generators as there."""
    expected, left = gradients_of(stranger, stranger.step)
    worst = 0.0
    for policy in POLICIES:
        with nothing_left():
            found, also = gradients_of(
                stranger, lambda: ts.backward(stranger.make_loss(), policy=policy, engine=engine)
            )
        worst = max(worst, tolerated(policy, found, expected))
        if also != left:
            raise WrongError(f"{policy} leaves others: {[name for name in left if also[name] != left[name]][:3]}")
    return Cell("right", "equal" if not worst else f"{worst:.0e}")


def installed(stranger: Stranger) -> Cell:
    """`loss.backward()` inside of `ts.policy`."""
    expected, _ = gradients_of(stranger, stranger.step)
    worst = 0.0
    for policy in ("heap", "bfs"):
        with nothing_left(), ts.policy(policy):
            found, _ = gradients_of(stranger, stranger.step)
        worst = max(worst, tolerated(policy, found, expected))
    return Cell("right", "equal" if not worst else f"{worst:.0e}")


def dry_run(stranger: Stranger) -> Cell:
    """The peak of PyTorch's own order, predicted without a backward, held against the measured one."""
    stranger.put_back()
    run = ts.profile(stranger.make_loss)
    stranger.put_back()
    with ts.capture():
        loss = stranger.make_loss()
    with nothing_changes(stranger):
        found = ts.simulate(ts.graph(loss))
    loss.backward()
    assert run.timeline is not None
    beside = kept_beside(run.timeline) - kept_beside(found)
    if run.timeline.start_bytes - found.start_bytes != beside:
        beside = 0
    return held("", found, run.peak_bytes - beside)


def kept_beside(timeline: ts.types.Timeline) -> int:
    """Bytes that the forward left and no node: what a model keeps for its next forward is not the graph's."""
    forward = (each for each in timeline if each.category is ts.types.Category.FORWARD and each.died is None)
    return sum(each.nbytes for each in forward if each.born < 0)


def calibrated(stranger: Stranger) -> Cell:
    """After one measured run the peaks in other orders, and what `ts.profile` leaves in .grad."""
    expected, _ = gradients_of(stranger, stranger.step)
    runs: dict[str, ts.Run] = {}
    for policy in POLICIES:
        with nothing_left():
            found, _ = gradients_of(stranger, lambda: runs.update({policy: ts.profile(stranger.make_loss, policy)}))
        tolerated(policy, found, expected)
    first = runs["heap"]
    cells = [
        held(policy, ts.simulate(first.graph, run.order, first.footprints), run.peak_bytes)
        for policy, run in runs.items()
    ]
    return max(cells, key=lambda cell: _RANKS.index(cell.outcome))


_RANKS = ("right", "estimate", "wrong")


def recomputed(stranger: Stranger) -> Cell:
    """Gradients are equal to the bit, the generators are where they were, and the peak is as planned."""
    expected, left = gradients_of(stranger, stranger.step)
    stranger.after_a_step()
    with nothing_changes(stranger):
        plan = ts.plan_recompute(stranger.make_loss, _BUDGET, seconds=_SEARCH_S, repetitions=1)

    def make_loss() -> Tensor:
        with ts.recompute(plan):
            return stranger.make_loss()

    for _ in range(2):  # the first forward keeps all, to verify the plan
        with nothing_left():
            found, also = gradients_of(stranger, lambda: make_loss().backward())
        if difference(found, expected):
            raise WrongError("the gradients are others")
        if also != left:
            raise WrongError(f"it leaves others: {[name for name in left if also[name] != left[name]][:3]}")
    stranger.put_back()
    cell = held("", plan.timeline, ts.profile(make_loss).peak_bytes)
    return Cell(cell.outcome, f"{ts.size_text(plan.plain_peak_bytes)} to {cell.text}")


def find_nan(stranger: Stranger, engine: Any) -> Cell:
    """The unchanged model has no finding; a planted fault is found in its module, in forward and backward."""
    stranger.after_a_step()
    with nothing_changes(stranger):
        report = ts.find_nan(stranger.make_loss, engine=engine)
    if report:
        raise WrongError(f"found in a clean model: {report.sentences[0]}")
    path = _somewhere(stranger)
    for where, plant in _PLANTS.items():
        stranger.after_a_step()
        with nothing_changes(stranger), _planted(stranger.model.get_submodule(path), plant):
            try:
                report = ts.find_nan(stranger.make_loss, engine=engine)
            except ValueError as error:  # the model's own error, with a note on the calls before it
                if not any(path in note for note in getattr(error, "__notes__", ())):
                    raise
                continue
        if report.where != where or not _is(report.module, path):
            raise WrongError(
                f"planted in the {where} of {path}: {report.where}, {report.module}: {report.sentences[0]}"
            )
    return Cell("right", path.rpartition(".")[2])


def _root_of_less_than_nothing(out: Tensor) -> Tensor:
    return out + (out.detach() * 0 - 1).sqrt()


def _slope_of_a_root_at_nothing(out: Tensor) -> Tensor:
    """The value is finite; its gradient is 0 times infinity."""
    return out + (out * 0).sqrt() * 0


_PLANTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "forward": _root_of_less_than_nothing,
    "backward": _slope_of_a_root_at_nothing,
}


def _somewhere(stranger: Stranger) -> str:
    """The path of a module in the middle of the model whose output is in the loss, of those without parts if it can."""
    stranger.put_back()
    called: list[nn.Module] = []
    reached: set[nn.Module] = set()

    def note(module: nn.Module, given: object, out: object) -> None:
        called.append(module)
        if isinstance(out, Tensor) and out.requires_grad:
            out.register_hook(lambda gradient: reached.add(module) if gradient.any() else None)

    handles = [each.register_forward_hook(note) for each in stranger.model.modules()]
    stranger.make_loss().backward()
    for handle in handles:
        handle.remove()
    paths = {module: path for path, module in stranger.model.named_modules() if path}
    fit = [module for module in called if module in reached and called.count(module) == 1 and module in paths]
    fit = [module for module in fit if not list(module.children())] or fit
    return paths[fit[len(fit) // 2]]


@contextmanager
def _planted(module: nn.Module, plant: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the result of the module's own forward inside of it."""
    forward = module.forward
    module.forward = lambda *args, **kwargs: plant(forward(*args, **kwargs))  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.forward


def _is(named: str | None, path: str) -> bool:
    """Return whether a module has this path; if parts of a model are called, names begin with the part's class."""
    rest = (named or "").partition(".")[2]
    return named is not None and (f".{path}".endswith(f".{named}") or (rest != "" and path.endswith(f".{rest}")))


def find_unused(stranger: Stranger) -> Cell:
    """The named parameters get no gradient, or one of zeros, and no others do."""
    expected, _ = gradients_of(stranger, stranger.step)
    stranger.after_a_step()
    with nothing_changes(stranger):
        report = ts.find_unused(stranger.make_loss, stranger.model)
    for what, right, claimed in (
        ("no gradient", {name for name, each in expected.items() if each is None}, _claimed(report, False)),
        (
            "zeros",
            {name for name, each in expected.items() if each is not None and not each.any()},
            _claimed(report, True),
        ),
    ):
        if missing := right - claimed:
            raise WrongError(f"not said: {what} for {sorted(missing)[:3]}")
        if wrongly := claimed - right:
            raise WrongError(f"wrongly said: {what} for {sorted(wrongly)[:3]}")
    return Cell("right", f"{len(report)} of {report.count}")


def _claimed(report: ts.types.UnusedReport, zeros: bool) -> set[str]:
    return {each.name for each in report if (each.why == "zero gradient") == zeros}


VERBS: Mapping[str, Callable[[Stranger], Cell]] = {
    "graph": graph,
    "native": partial(gradients, engine="native"),
    "direct": partial(gradients, engine="direct"),
    "ts.policy": installed,
    "dry run": dry_run,
    "calibrated": calibrated,
    "recomputed": recomputed,
    "find_nan": partial(find_nan, engine="direct"),
    "find_nan, native": partial(find_nan, engine="native"),
    "find_unused": find_unused,
}
"""By the heading of their column."""
