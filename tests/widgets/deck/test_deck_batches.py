"""Products that run as one, in the deck: a step runs all of a group, and the page says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.session.direct_session import Stepper
from tapescope.tests.says import Snapshots, raises
from tapescope.widgets.deck.deck import Deck
from tapescope.widgets.deck.run_page_data import run_document

from ..page_side import Page


def ensemble_loss() -> Tensor:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)) for _ in range(4)]
    x = torch.randn(2, 3)
    with ts.capture(nn.ModuleList(models)):
        return torch.stack([model(x) for model in models]).square().sum()


@pytest.mark.parametrize("policy", ["heap", "bfs", "dfs"])
def test_a_step_of_a_group_shows_all_that_ran_and_what_comes(page: Page, policy: str) -> None:
    deck = Deck(ts.debug(ensemble_loss(), policy=policy, batch="auto", trace="off"), policy=policy)
    page.open(deck)
    planned = page.order
    most = 0
    while deck.current is not None:
        ran = deck.position
        deck.step()
        most = max(most, deck.position - ran)
        assert page.position == deck.position == len(deck.order)
        assert page.order[: page.position] == deck.order
        assert sorted(page.replay.queue(page.position)) == sorted(each.task.id for each in deck.ready)
        assert deck.current_task == page.replay.running(page.position)
    assert most == 4
    assert planned == deck.order
    assert deck.batches is not None
    assert [len(batch.tasks) for batch in deck.batches] == [4, 4]
    (own, *_) = page.document["schedules"]
    assert [len(batch) for batch in own["batches"]] == [4, 4]
    assert any("batch=" in each for each in own["memory"]["estimates"])


class Sum(nn.Module):
    """Sums the results of several modules, whose products run as one."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([part(x) for part in self.parts]).sum(0)


def test_a_decks_steps_end_where_a_sessions_do_though_tasks_run_as_one() -> None:
    found = []
    for make in (lambda session: session, Deck):
        model = Sum(*(Sum(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(2)))
        x = torch.randn(4, 8, requires_grad=True)

        def session() -> Stepper:
            with ts.capture(model):
                return ts.debug(model(x).sum(), batch="auto")

        batch = next(each.tasks for each in session().run().batches or ())
        reached = []
        for verbs in ([("run_to", batch[1])], [("step",), *[("step_over",)] * 6]):
            driven = make(session())
            for verb, *given in verbs:
                if driven.current is not None:
                    getattr(driven, verb)(*given)
                    reached.append((len(driven.order), driven.current and driven.current.id))
            driven.close()
        assert reached[0][1] == batch[1]
        found.append(reached)
    assert found[0] == found[1] and len(found[0]) > 3


def test_a_saved_run_has_its_batches_and_an_older_file_has_none(tmp_path: Path) -> None:
    run = ts.backward(ensemble_loss(), engine="direct", batch="auto", trace="off")
    assert run.batches is not None
    run.save(tmp_path / "run.tape.json")
    loaded = ts.load(tmp_path / "run.tape.json")
    assert loaded.trace is not None
    assert loaded.batches is not None
    assert loaded.batches.batches == loaded.trace.batches.batches == run.batches.batches
    assert repr(loaded.batches) == repr(run.batches)
    assert run_document(loaded).content["schedules"][0]["batches"] == run.batches.steps
    text = (tmp_path / "run.tape.json").read_text()
    start = text.index('"batches"')
    end = text.index('"timeline"')
    (tmp_path / "old.tape.json").write_text(text[:start] + text[end:])
    older = ts.load(tmp_path / "old.tape.json")
    assert older.batches is None
    assert older.trace is not None
    assert not older.trace.batches
    assert "batches" not in run_document(older).content["schedules"][0]


@pytest.mark.parametrize("damaged", ['["bmm"', '["sum",[0,1],1,1,1,1,1]', '["bmm",[0,999],1,1,1,1,1]'])
def test_a_damaged_file_is_refused(tmp_path: Path, damaged: str, snapshot: Snapshots) -> None:
    run = ts.backward(ensemble_loss(), engine="direct", batch="auto")
    path = tmp_path / "run.tape.json"
    run.save(path)
    text = path.read_text()
    start = text.index('"ran"')
    end = text.index('"fallbacks"')
    path.write_text(f'{text[:start]}"ran":[{damaged}],{text[end:]}')
    with raises(ValueError, "run.tape.json") as raised:
        ts.load(path)
    if '"sum"' in damaged:
        snapshot("load", raised.value)
