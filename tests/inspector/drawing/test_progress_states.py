"""The picture of a graph says how far a backward is."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

import torch
from torch import nn

import tapescope as ts
from tapescope.inspector.drawing.progress_states import State, states_of
from tapescope.inspector.drawing.svg import graph_to_svg


def session_at(ran: int) -> ts.types.Stepper:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    with ts.capture():
        loss = model(torch.ones(2, 4)).sum()
    session = ts.debug(loss, engine="direct")
    session.step(count=ran)
    return session


def states(session: ts.types.Stepper) -> list[State]:
    assert session.current is not None
    ready = [entry.task.id for entry in session.ready]
    return states_of(len(session.graph), session.order, ready, session.current.id)


def test_each_task_is_drawn_in_its_state() -> None:
    session = session_at(4)
    found = states(session)
    drawn = graph_to_svg(session.graph, fold="none", states=found)
    ElementTree.fromstring(drawn)
    assert Counter(re.findall('data-state="([a-z]+)"', drawn)) == Counter(found)
    assert (found.count("done"), found.count("running")) == (4, 1)
    for title in ("done", "running"):
        assert f">{title}</text>" in drawn


def test_what_is_folded_says_how_much_of_it_has_run() -> None:
    session = session_at(4)
    drawn = graph_to_svg(session.graph, fold=0, states=states(session))
    bars = re.findall(r'class="ts-bar" d="M[\d.]+ [\d.]+h([\d.]+)', drawn)
    assert bars and all(float(width) > 0 for width in bars)


def test_of_equal_layers_the_one_that_runs_is_shown_with_how_far_each_is() -> None:
    layers = (nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4))
    model = nn.Sequential(nn.Sequential(*layers), nn.Linear(4, 1))
    with ts.capture(model):
        loss = model(torch.ones(2, 4, requires_grad=True).exp()).sum()
    session = ts.debug(loss, engine="direct")
    in_second = next(task.id for task in session.graph.tasks if session.graph.module(task) == "0.2.1")
    while session.current is not None and session.current.id != in_second:
        session.step()
    root = ElementTree.fromstring(graph_to_svg(session.graph, states=states(session)))
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("2Sequential ×4") == 1, "the box is called as the layer that runs"
    assert [each for each in texts if each.lstrip("✓▶") in list("3210")] == ["✓3", "▶2", "1", "0"]
    drawn = {int(each.get("data-task", -1)): each for each in root.iter() if each.get("data-task")}
    inside = [task.id for task in session.graph.tasks if (session.graph.module(task) or "").startswith("0.2.")]
    assert set(inside) <= set(drawn) and drawn[in_second].get("data-state") == "running"
    assert not [task for task in drawn if (session.graph.module(task) or "").startswith(("0.3.", "0.1.", "0.0."))]
    assert Counter(drawn[task].get("data-state") for task in inside) == {"running": 1, "waiting": len(inside) - 1}
    session.run()
    done = graph_to_svg(session.graph, states=["done"] * len(session.graph))
    assert all(f">✓{number}</text>" in done for number in range(4)) and 'data-state="waiting"' not in done
    session.close()


def test_of_layers_in_layers_the_inner_ones_are_those_of_the_outer_one_that_runs() -> None:
    def block() -> nn.Module:
        return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)))

    model = nn.Sequential(*(nn.Sequential(block(), nn.Sigmoid()) for _ in range(3)))
    with ts.capture(model):
        loss = model(torch.ones(2, 4, requires_grad=True).exp()).sum()
    graph = ts.graph(loss)
    at = [task.id for task in graph.tasks if graph.module(task) == "1.0.0.1"]
    found: list[State] = ["waiting"] * len(graph)
    for task in graph.tasks:
        module = graph.module(task) or ""
        if module.startswith("2.") or module in ("1.1", "1.0.1.1", "1.0.1.0"):
            found[task.id] = "done"
    for task_id in at:
        found[task_id] = "running"
    root = ElementTree.fromstring(graph_to_svg(graph, states=found))
    modules = {graph.module(int(each.get("data-task", -1))) for each in root.iter() if each.get("data-task")}
    assert {"1.0.0.1", "1.0.0.0", "1.1"} <= modules
    assert not [module for module in modules if (module or "").startswith(("0.", "2."))]


def test_without_states_the_picture_is_what_it_was() -> None:
    session = session_at(1)
    drawn = graph_to_svg(session.graph)
    assert "data-state" not in drawn and ">done<" not in drawn
    session.close()
