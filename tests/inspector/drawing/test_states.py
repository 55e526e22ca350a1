"""The picture of a graph says how far a backward is."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

import torch
from torch import nn

import tapehead as th
from tapehead.inspector.drawing.states import State, states_of
from tapehead.inspector.drawing.svg import graph_to_svg


def session_at(ran: int) -> th.Stepper:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    with th.capture():
        loss = model(torch.ones(2, 4)).sum()
    session = th.debug(loss, engine="direct")
    session.step(count=ran)
    return session


def states(session: th.Stepper) -> list[State]:
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
    for title in ("has run", "runs next"):
        assert f">{title}</text>" in drawn


def test_what_is_folded_says_how_much_of_it_has_run() -> None:
    session = session_at(4)
    drawn = graph_to_svg(session.graph, fold=0, states=states(session))
    bars = re.findall(r'<rect class="th-bar"[^>]* width="([\d.]+)"', drawn)
    assert bars and all(float(width) > 0 for width in bars)


def test_without_states_the_picture_is_what_it_was() -> None:
    session = session_at(1)
    drawn = graph_to_svg(session.graph)
    assert "data-state" not in drawn and "has run" not in drawn
    session.close()
