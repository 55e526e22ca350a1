"""A deck's page is one file, with nothing in it that could be taken for something else."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import tapescope as ts
from tapescope.engine.planning.policies import find_policy
from tapescope.engine.planning.simulate import simulate
from tapescope.widgets.deck.page_data import Document, schedule_content
from tapescope.widgets.deck.save_deck import save_page

BUNDLE = Path(__file__).parents[3] / "widgets" / "static" / "deck.js"
HOSTILE = "</title><script>alert(1)</script>\"'& 🦩"


class Elements(HTMLParser):
    """The elements of a page, and the text of those that have one."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(("", {}))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.found[-1] if self.found else ("", {})
        key = attributes.get("id") or tag
        self.texts[key] = self.texts.get(key, "") + data


@pytest.fixture(scope="module")
def document() -> bytes:
    """Return the document of a model whose module has a name that would end a script."""
    model = torch.nn.Module()
    model.add_module("</script><b>", torch.nn.Linear(4, 4))
    with ts.capture():
        loss = next(model.children())(torch.ones(2, 4)).sum()
    graph = ts.graph(loss)
    found = Document(graph, HOSTILE, "direct")
    timeline = simulate(graph)
    found.content["schedules"].append(schedule_content(graph, find_policy("heap"), timeline.order, timeline=timeline))
    return found.packed()


def page_of(document: bytes, folder: Path, title: str) -> tuple[str, Elements]:
    text = save_page(document, folder / "deck.html", title).read_text(encoding="utf-8")
    elements = Elements()
    elements.feed(text)
    return text, elements


def test_the_page_holds_the_code_and_the_document(document: bytes, tmp_path: Path) -> None:
    _, elements = page_of(document, tmp_path, "model")
    assert gzip.decompress(b64decode(elements.texts["code"])) == BUNDLE.read_bytes()
    assert b64decode(elements.texts["document"]) == document
    assert json.loads(gzip.decompress(b64decode(elements.texts["document"])))["format"] == "tapescope.deck"


def test_names_are_text_wherever_they_stand(document: bytes, tmp_path: Path) -> None:
    text, elements = page_of(document, tmp_path, HOSTILE)
    assert elements.texts["title"] == f"{HOSTILE} · tapescope"
    assert [tag for tag, _ in elements.found].count("script") == 4
    assert "alert(1)</script>" not in text and "</script><b>" not in text


def test_nothing_is_asked_of_a_network(document: bytes, tmp_path: Path) -> None:
    text, elements = page_of(document, tmp_path, "model")
    assert not [attributes for _, attributes in elements.found if {"src", "href", "action", "srcset"} & set(attributes)]
    assert not re.search(r"https?://|url\(|@import", text)
    policies = [attributes for _, attributes in elements.found if "http-equiv" in attributes]
    assert [each["http-equiv"] for each in policies] == ["Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in (policies[0]["content"] or "").split(";"))
    assert rules["default-src"] == "'none'"
    assert not re.search(r"\*|https?:|'unsafe-eval'", policies[0]["content"] or "")
    before = [tag for tag, _ in elements.found[: elements.found.index(("meta", policies[0]))]]
    assert not {"script", "style", "link"} & set(before), "a policy rules what comes after it"


def test_the_same_deck_gives_the_same_file(document: bytes, tmp_path: Path) -> None:
    assert page_of(document, tmp_path, "model")[0] == page_of(document, tmp_path, "model")[0]


def test_a_title_may_be_any_string(document: bytes, tmp_path: Path) -> None:
    _, elements = page_of(document, tmp_path, "a\udcff" + "x" * 10_000)
    assert elements.texts["title"] == "a?" + "x" * 10_000 + " · tapescope"
