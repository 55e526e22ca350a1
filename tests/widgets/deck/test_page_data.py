"""The page's data: whatever names and numbers there are, what is packed is what is read."""

from __future__ import annotations

import json
import math
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

import tapescope as ts
from tapescope.engine.planning.policies import CLASSIC
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.tests.says import says, says_none_of
from tapescope.widgets.deck.page_data import FORMAT, NONE, VERSION, Document, arrivals_of, packed, title_of
from tapescope.widgets.deck.save_deck import page_html

from ..models import Branches, deck_on, forward
from ..page_side import Replay, unpacked

STRANGE = (
    "<script>alert(1)</script>",
    "\"quoted\" \\ and 'so'",
    "emoji 🙂 and ünïcode",
    "x" * 10_000,
    "\ud800 alone",
    "\0",
)


def test_columns_are_the_graph() -> None:
    model = Branches()
    graph = ts.graph(forward(model))
    content = unpacked(Document(graph, "title", "native").packed())
    text, tasks = content["texts"], content["tasks"]
    assert (content["format"], content["version"], content["title"]) == (FORMAT, VERSION, "title")
    for task in graph.tasks:
        assert text[tasks["name"][task.id]] == task.name
        assert text[tasks["kind"][task.id]] == task.kind.value
        assert (NONE if task.call is None else task.call) == tasks["call"][task.id]
        parameter = tasks["parameter"][task.id]
        assert (None if parameter == NONE else text[parameter]) == task.parameter
        takes = [content["metas"][each] for each in content["forms"][tasks["takes"][task.id]]]
        assert [(each["shape"], each["bytes"]) for each in takes] == [
            (list(meta.shape or ()), meta.nbytes) for meta in task.inputs
        ]
        line = tasks["line"][task.id]
        assert (line == NONE) == (task.source is None)
        if task.source is not None:
            found = content["lines"][line]
            assert (found["short"], found["function"]) == (task.source.short, task.source.function)
            assert found["code"][task.source.line - found["first"]] == task.source.code()[0][:400]
    edges = content["edges"]
    assert list(zip(edges["task"], edges["output"], edges["next"], edges["input"], strict=True)) == [
        (edge.task, edge.output, edge.next_task, edge.input) for edge in graph.edges
    ]
    assert [[root.task, root.input] for root in graph.roots] == content["roots"]
    assert [text[each] for each in content["calls"]["path"]] == [call.path for call in graph.calls]
    saved = content["saved"]
    assert list(zip(saved["task"], [text[each] for each in saved["slot"]], saved["bytes"], strict=True)) == [
        (each.task, each.slot, each.storage_bytes or 0) for each in graph.saved
    ]


@pytest.mark.parametrize("name", STRANGE, ids=range(len(STRANGE)))
def test_any_name_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    model = nn.Sequential(OrderedDict([("first", nn.Linear(2, 2)), ("last", nn.Linear(2, 1))]))
    model._modules = OrderedDict([(name, model.first), ("last", model.last)])
    named = name.replace("\0", "").replace("\ud800", "")  # which classes can't have in their names
    model.__class__ = type(f"Strange{named}", (nn.Sequential,), {})
    with ts.capture(model):
        loss = model(torch.randn(1, 2)).sum()
    deck = deck_on(loss)
    data = deck.packed()
    content = unpacked(data)
    assert any(name in text for text in content["texts"])
    assert content["title"] == type(model).__name__ == title_of(deck.graph)
    page = page_html(data, content["title"])
    assert "<script>alert" not in page and page.count("</script>") == page.count("<script")
    assert deck.save_html(tmp_path / "deck.html").stat().st_size > 1000
    deck.close()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_statistics_without_a_finite_number_are_json(value: float) -> None:
    x = torch.full((4, 4), 1.0, requires_grad=True)
    deck = deck_on((x * torch.tensor(value)).sum() * 10)
    deck.run()
    content = unpacked(deck.packed())
    text = json.dumps(content)
    assert "NaN" not in text and "Infinity" not in text
    found = content["records"][str(deck.order[-1])]["inputs"][0]
    assert found["nan"] + found["inf"] == 16 and found["max"] is None and found["norm"] is None
    deck.close()
    assert math.isnan(json.loads("NaN")), "what `allow_nan=False` keeps out"
    with pytest.raises(ValueError, match="not JSON compliant"):
        packed({"value": float("nan")})


def test_what_comes_while_it_is_packed_is_in_it_or_is_asked_for() -> None:
    deck = deck_on(forward(Branches()))
    document, publisher = deck._live.document, deck._live.publisher

    class Slow(dict[str, object]):
        def copy(self) -> dict[str, object]:
            found = dict(self)
            document.content["records"] = found.copy()
            publisher.tell(records={"0": document.record([])})
            return found

    document.content["records"] = Slow()
    content = unpacked(document.packed())
    assert content["records"] or content["revision"] < document.content["revision"]
    deck.close()


def test_packing_is_the_same_each_time() -> None:
    graph = ts.graph(forward(Branches()))
    assert Document(graph, "t", "direct").packed() == Document(graph, "t", "direct").packed()


@pytest.mark.parametrize("policy", CLASSIC)
def test_arrivals_are_those_of_the_page(policy: str) -> None:
    graph = ts.graph(forward(Branches()))
    order = schedule(graph, policy)
    content = unpacked(Document(graph, "t", "direct").packed())
    found = Replay(content, {"order": order, "keys": "arrival"})
    assert found.arrival == arrivals_of(graph, order)


def test_resnet50_is_small() -> None:
    _, make_loss = WORKLOADS["resnet50"].build()
    with ts.capture():
        loss = make_loss()
    assert len(Document(ts.graph(loss), "t", "direct").packed()) < 100_000


def test_a_deck_names_the_tasks_of_its_storages_by_their_numbers() -> None:
    deck = deck_on(forward(Branches()))
    largest = deck._live.document.content["schedules"][0]["memory"]["rows"]
    deck.close()
    words = " ".join(each["freed_by"] for each in largest)
    assert re.search(r"\b\w+Backward0 \(.*\d+[a-z]{2}[,)]", words) and not re.search(r"task \d|#", words)


def test_the_title_is_the_model_or_all_of_them() -> None:
    model, tanh, first, second = Branches(), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 4)

    def title(*modules: nn.Module) -> str:
        with ts.capture():
            x = torch.randn(2, 4)
            for module in modules:
                x = module(x)
            return title_of(ts.graph(x.sum()))

    assert title(model, tanh) == title(tanh, model, model) == "Branches", "a loss function is no model"
    assert title(first, first) == "Linear"
    assert title(first, second) == "2 × Linear"
    says(title(first, tanh, second), "2 × Linear", "Tanh")
    four = title(first, tanh, nn.GELU(), nn.SiLU())
    says(four, "Linear", "Tanh", 2)
    says_none_of(four, "GELU", "SiLU")
    says(title(nn.Sequential(first), model, tanh), "Sequential", "Branches")
    assert title_of(ts.graph(torch.ones(2, requires_grad=True).sum())) == "Sum"


def test_a_record_names_the_hooks_that_ran_and_a_storage_without_a_name_its_keeper() -> None:
    def double_it(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2

    weight = torch.randn(64, 64, requires_grad=True)
    weight.register_hook(double_it)
    deck = deck_on((torch.randn(64, 64) @ weight).relu().sum())
    deck.run()
    content = unpacked(deck._live.document.packed())
    hooks = {name for record in content["records"].values() for name in record.get("hooks", ())}
    assert hooks and all("hook" in name and "double_it" in name for name in hooks)
    names = [each["name"] for each in content["schedules"][0]["memory"]["rows"]]
    assert any("MmBackward0" in name and "ReluBackward0" in name for name in names)
    deck.close()
