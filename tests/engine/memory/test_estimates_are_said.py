"""Every display of a predicted figure says whether it is an estimate, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.memory.estimates import (
    WORKSPACE,
    Estimate,
    bounded_size,
    direction_of,
    estimate_sentence,
    limit_sentence,
    main_reason,
)
from tapescope.tests.says import Snapshots, says, says_none_of

KERNELS = "mkldnn_rnn_layer_backward"
PACKED = "saved_tensors_hooks"


def recurrent() -> Tensor:
    """oneDNN's kernels, of which no dry run can tell what they take."""
    torch.manual_seed(0)
    model = nn.LSTM(16, 64)
    return model(torch.randn(8, 4, 16))[0].sum()  # type: ignore[no-any-return]


def plain() -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    return model(torch.randn(8, 16)).sum()  # type: ignore[no-any-return]


def checkpointed() -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    found: Tensor = checkpoint(model, torch.randn(8, 16, requires_grad=True), use_reentrant=False)
    return found.sum()


def of_plan(make_loss: Callable[[], Tensor]) -> str:
    return "\n".join(ts.plan_order(make_loss()).sentences)


def of_report(make_loss: Callable[[], Tensor]) -> str:
    return str(ts.peak_report(ts.simulate(ts.graph(make_loss()))))


def of_deck(make_loss: Callable[[], Tensor]) -> str:
    from tapescope.widgets.deck.deck import Deck

    deck = Deck(ts.debug(make_loss()))
    return "\n".join(deck.compare(["heap", "bfs"]).sentences)


def of_still(make_loss: Callable[[], Tensor]) -> str:
    from tapescope.widgets.deck.still_picture import Moment, Still

    drawn = ts.graph(make_loss())
    timeline = ts.simulate(drawn)
    return Still("id", "title", drawn).svg(Moment("heap", 0, len(drawn), {"heap": timeline}))


def of_branches(make_loss: Callable[[], Tensor]) -> str:
    session = ts.debug(make_loss(), history=True)
    session.step()
    return "\n".join(session.compare_branches().sentences)


PLACES = [of_plan, of_report, of_deck, of_still, of_branches]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_what_is_known_to_the_byte_is_none(place: Callable[[Callable[[], Tensor]], str]) -> None:
    says_none_of(place(plain), "estimate")


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize(("make_loss", "why"), [(recurrent, KERNELS), (checkpointed, PACKED)])
def test_what_no_run_has_shown_is_an_estimate_and_says_why(
    place: Callable[[Callable[[], Tensor]], str], make_loss: Callable[[], Tensor], why: str
) -> None:
    says(place(make_loss), "estimate", why)


def test_what_a_run_has_shown_is_none() -> None:
    run = ts.profile(plain)
    plan = ts.plan_order(run.graph, footprints=run.footprints)
    for text in (*plan.sentences, ts.peak_report(ts.simulate(run.graph, "bfs", run.footprints))):
        says_none_of(text, "estimate")


def test_each_reason_is_said_once_and_of_many_how_many_there_are(snapshot: Snapshots) -> None:
    assert estimate_sentence(()) == ""
    assert estimate_sentence(["x1", "x2", "x1"]) == estimate_sentence(["x1", "x2"])
    said = estimate_sentence(["x1", "x2", "x3", "x4", "x5"], "The peak")
    says(said, "The peak", "x1", "x2", "x3", 2)
    says_none_of(said, "x4", "x5")
    snapshot("simulate", said)
    assert main_reason([WORKSPACE]) == WORKSPACE and main_reason(()) == ""
    limit = limit_sentence(ts.graph(plain()), "hooks", [0])
    said = main_reason([WORKSPACE, limit])
    assert said == main_reason([limit]) == main_reason([said]) and len(said) < len(limit)
    says(said, "hooks")


def test_an_estimate_has_the_direction_that_all_of_its_reasons_have(snapshot: Snapshots) -> None:
    low, high, other = Estimate("a", "at least"), Estimate("b", "at most"), Estimate("c")
    directions = [direction_of(reasons) for reasons in ([], [low, low], [high], [low, high], [low, other], ["plain"])]
    assert directions == [None, "at least", "at most", "unknown", "unknown", "unknown"]
    sizes = [bounded_size(1024, each) for each in ([], [low], [high], [other])]
    assert sizes[0] == "1 KiB" and len(set(sizes)) == 4
    for each in sizes:
        says(each, "1 KiB")
    snapshot("simulate", "\n".join([*sizes, *(estimate_sentence([each]) for each in (low, high, other))]))


def test_each_place_says_on_which_side_of_it_a_peak_is() -> None:
    for place in (of_plan, of_report, of_deck):
        says(place(checkpointed), "at least")


def test_a_file_keeps_the_directions(tmp_path: Path) -> None:
    loss = checkpointed()
    timeline = ts.simulate(ts.graph(loss))
    run = replace(ts.backward(loss), timeline=timeline)
    assert ts.load(run.save(tmp_path / "run.json")).timeline.direction == timeline.direction == "at least"
