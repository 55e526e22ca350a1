"""Access to an attribute of another result raises an error that names the right result."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable

import ipywidgets
import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.session.session import SessionBase
from tapescope.tests.says import Snapshots, raises
from tapescope.widgets.deck.deck import Deck

MODEL = nn.Linear(3, 3)
INNER = {"packed", "moment", "close_unseen", "is_shown", "stop_here", "forget", "tasks_to_leave"}
"""What no guide speaks of."""


def make_loss() -> Tensor:
    loss: Tensor = MODEL(torch.ones(2, 3)).sum()
    return loss


def names_of(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} | {
        name for name in inspect.get_annotations(kind) if not name.startswith("_")
    }


SESSION = names_of(ts.types.Stepper) | {"accumulation"}
DECK = names_of(Deck) - names_of(ipywidgets.DOMWidget)
RUN = names_of(ts.Run)
ASKED: dict[str, tuple[Callable[[], object], set[str]]] = {
    "debug": (lambda: ts.debug(make_loss()), (DECK | RUN) - SESSION - INNER),
    "deck": (lambda: ts.deck(make_loss()), (SESSION | RUN) - names_of(Deck) - INNER - {"runs_in_this_thread"}),
}


@pytest.mark.parametrize("what", ASKED)
def test_what_others_have_is_said_in_a_sentence(what: str, snapshot: Snapshots) -> None:
    make, names = ASKED[what]
    told = {}
    with make() as asked:  # type: ignore[attr-defined]
        assert len(names) > 15
        for name in sorted(names):
            assert not hasattr(asked, name), name
            with raises(AttributeError, name) as caught:
                getattr(asked, name)
            with pytest.raises(AttributeError) as plain:
                object.__getattribute__(asked, name)
            told[name] = str(caught.value)
            assert told[name] != str(plain.value), "Python's own sentence names no remedy"
    snapshot(what, "\n".join(told.values()))


def test_no_repr_pickle_or_copy_is_misled() -> None:
    with ts.deck(make_loss()) as deck:
        for asked in (ts.debug(make_loss()), deck):
            assert not hasattr(asked, "_ipython_canary_method_should_not_exist_")
            assert not hasattr(asked, "timeline") and not hasattr(asked, "_repr_latex_")
            bare = type(asked).__new__(type(asked))
            assert not hasattr(bare, "no_such_name")
    assert getattr(ts.debug(make_loss()), "_repr_html_", None) is None
    with pytest.raises(AttributeError) as caught:
        ts.debug(make_loss()).redy  # type: ignore[union-attr]  # noqa: B018
    assert caught.value.name == "redy" and isinstance(caught.value.obj, SessionBase)  # Python says what was meant
    copy.copy(ts.backward(make_loss()))


def test_the_error_of_a_property_is_not_taken_for_a_name_in_vain() -> None:
    class Wrong(ts.types.Stepper):
        @property
        def position(self) -> int:
            raise AttributeError("from inside")

    assert inspect.isclass(Wrong)
    with Wrong(make_loss()) as session, pytest.raises(AttributeError, match="from inside"):
        session.position  # noqa: B018

    class WrongRun(ts.Run):
        @property
        def peak_bytes(self) -> int:
            raise AttributeError("from inside")

    run = ts.backward(make_loss())
    with pytest.raises(AttributeError, match="from inside"):
        WrongRun(run.graph, "heap", "native", run.order, run.planned, 0).peak_bytes  # noqa: B018


def test_a_decks_comparison_is_printed_as_the_table(snapshot: Snapshots) -> None:
    with ts.deck(make_loss()) as deck:
        table = str(deck.compare(["heap", "bfs"]))
        said = table.splitlines()
        assert said[0].split()[:2] == ["policy", "peak"]
        assert [line.split()[0] for line in said[1:3]] == ["heap", "bfs"]
        assert str(deck.compare("heap")).splitlines()[1].startswith("heap")
        with raises(TypeError, "policies", "int") as refused:
            deck.compare(3)  # type: ignore[arg-type]
    snapshot("deck", table)
    snapshot("deck", refused.value)
