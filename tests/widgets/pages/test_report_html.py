from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

import tapescope as ts
from tapescope.tests.says import Snapshots, says
from tapescope.widgets.pages.report_html import advice_html

NASTY = "<img src=x onerror=alert(1)>"


class Parts(HTMLParser):
    """The tags of a text, its words by tag, and how deep it ends."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.words: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(html)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "br":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.words.setdefault(self._open[-1], []).append(data)


class Side(nn.Module):
    """Members below a name that is HTML."""

    def __init__(self) -> None:
        super().__init__()
        self._modules[NASTY] = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (members,) = self.children()
        assert isinstance(members, nn.ModuleList)
        return torch.stack([member(x) for member in members])


@pytest.fixture(scope="module")
def found() -> ts.types.Advice:
    model, x = Side(), torch.randn(2, 4)
    advice = ts.advise(lambda: model(x).sum(), model, rounds=1)
    first, second = advice
    return replace(advice, items=(replace(first, verdict="gain"), replace(second, verdict="no gain")))


def test_table_facts_and_code_of_which_the_best_is_open(found: ts.types.Advice, snapshot: Snapshots) -> None:
    html = advice_html(found)
    assert html == found._repr_html_()
    parts = Parts(html)
    assert len(parts.words["th"]) == len(found.cells[0])
    snapshot("advise", "\n".join(parts.words["th"]))
    assert [word for word in parts.words["p"] if word.strip()] == list(found.sentences)
    assert parts.words["li"] == [fact for item in found for fact in item.facts]
    assert parts.words["code"] == [item.code for item in found]
    assert [attributes for tag, attributes in parts.tags if tag == "details"] == [{"open": None}, {}]


def test_names_are_escaped_and_nothing_runs_or_is_loaded(found: ts.types.Advice) -> None:
    assert any(NASTY in (item.code or "") for item in found)
    tags = {tag for tag, _ in Parts(advice_html(found)).tags}
    assert not tags & {"img", "script", "a", "link", "iframe"}
    assert "<img" not in advice_html(found)


def test_without_advice_it_is_sentences(found: ts.types.Advice, snapshot: Snapshots) -> None:
    parts = Parts(advice_html(replace(found, items=())))
    assert "table" not in {tag for tag, _ in parts.tags}
    snapshot("advise", parts.words["p"][1])


def test_a_run_shows_its_memory_and_the_report_on_its_peak() -> None:
    model, x = Side(), torch.randn(2, 4)
    run = ts.profile(lambda: model(x).sum())
    html = Parts(run._repr_html_())
    assert {"svg", "table"} < {tag for tag, _ in html.tags}
    assert "img" not in {tag for tag, _ in html.tags}, "names are text"
    says(" ".join(html.words["p"] + html.words["b"]), f"{len(run.order)} tasks", *run.peak().answer)
    unmeasured = Parts(ts.backward(model(x).sum())._repr_html_())
    assert "svg" not in {tag for tag, _ in unmeasured.tags}
    says(" ".join(unmeasured.words["p"]), "Run of")


def test_code_in_a_hint_is_marked_and_names_stay_text() -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    report = ts.profile(lambda: torch.stack([linear(x) for _ in range(50)]).sum(), policy="bfs").peak()
    (hint,) = (each for each in report.hints if "`ts.compare`" in each.advice)
    report = replace(report, hints=(replace(hint, fact=f"{NASTY} waits"),))
    parts = Parts(report._repr_html_())
    assert parts.words["code"] == ["ts.compare"]
    assert "img" not in {tag for tag, _ in parts.tags}
