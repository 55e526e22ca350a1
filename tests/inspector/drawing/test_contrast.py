"""Every text of a picture can be read, whatever it stands on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import nn

import tapescope as ts
from tapescope.inspector.drawing.annotations import HUES, Outline, letters
from tapescope.inspector.drawing.progress_states import State
from tapescope.inspector.drawing.svg import graph_to_svg
from tapescope.inspector.graph.graph import Fold, Graph
from tapescope.inspector.graph.kinds import Kind

from ..programs import captured

LEAST = 4.5  # of text: WCAG 2, AA
EACH_IN_TURN: tuple[State, ...] = ("done", "running", "ready", "waiting")

Theme = Literal["light", "dark"]
TextsIn = Callable[[str], list[Any]]


def deep() -> Graph:
    """Modules in modules, equal layers on buttons, in cells and on a strip, kinds of all sorts."""

    def layers(count: int) -> nn.Module:
        return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(count)))

    class Turned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(2, 2, 2).transpose(0, 1).reshape(2, 4).exp()

    inner = nn.Sequential(
        nn.Sequential(Turned(), layers(3), nn.Sequential(nn.Sequential(Turned(), nn.Tanh()), nn.Tanh()))
    )
    model = nn.Sequential(nn.Sequential(nn.Sequential(nn.Sequential(inner)), layers(8)), layers(30))
    with ts.capture(model):
        loss = model(torch.ones(2, 4)).sum()
    graph = ts.graph(loss)
    kinds = [kind for kind in Kind if kind is not Kind.ACCUMULATE_GRAD]
    others = [task for task in graph.tasks if not task.is_leaf]
    changed = {task.id: kinds[place % len(kinds)] for place, task in enumerate(others[-8:])}
    return replace(graph, tasks=tuple(replace(task, kind=changed.get(task.id, task.kind)) for task in graph.tasks))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("fold", ["fit", "repeats"])
def test_texts_in_every_state_have_contrast(theme: Theme, fold: Fold, texts_in: TextsIn) -> None:
    graph = deep()
    count = len(graph)
    half: list[State] = ["waiting" if task < count // 2 else "done" for task in range(count)]
    half[count // 2] = "running"
    mixed = [EACH_IN_TURN[task % 4] for task in range(count)]
    for states in ([], half, mixed, *([state] * count for state in EACH_IN_TURN)):
        read = texts_in(graph_to_svg(graph, fold=fold, theme=theme, states=states))
        assert len(read) > 20
        assert not {(each.text, each.classes, round(each.contrast, 2)) for each in read if each.contrast < LEAST}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_so_do_the_names_of_outlines(theme: Theme, texts_in: TextsIn) -> None:
    graph = captured("linear50")
    outlines = [
        Outline(letters(number), "alike", (number, number + 1), dashed=number >= HUES) for number in range(2 * HUES)
    ]
    read = texts_in(graph_to_svg(graph, fold="none", theme=theme, outlines=outlines))
    assert not [each for each in read if each.contrast < LEAST]


def test_a_text_that_is_too_faint_is_found(texts_in: TextsIn) -> None:
    picture = graph_to_svg(captured("lstm_cell", steps=3), theme="light")
    faint = picture.replace(".ts-light .ts-soft{fill:#656b76}", ".ts-light .ts-soft{fill:#909090}")
    assert {each.classes for each in texts_in(faint) if each.contrast < LEAST} == {"ts-soft"}
