"""The prediction of `ts.fits` as a page and in a notebook: the memory over the step, and lifetimes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.tests.says import says
from tapescope.widgets.pages.fit_page import fit_html
from tapescope.widgets.pages.step_figure import step_drawing, step_lifetimes_drawing
from tapescope.widgets.pages.theme import AUTO, LATER

from .page_parts import figures_told, said_of

ODD = "<b>&x"


class Odd(nn.Module):
    """Has a module whose name is not safe in HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module(ODD, nn.Linear(16, 64))
        self.last = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self._modules[ODD](x)))


@pytest.fixture(scope="module")
def fit() -> ts.types.Fit:
    def batch(size: int = 8) -> tuple[Tensor]:
        return (torch.randn(size, 16),)

    return ts.fits(Odd, batch, lambda parameters: torch.optim.Adam(parameters), "1GiB", lambda m, b: m(*b).sum())


def test_each_block_has_a_name(fit: ts.types.Fit) -> None:
    timeline = fit.timeline
    named = dict(zip(timeline.names, timeline.kinds, strict=True))
    assert named[f"{ODD}.weight"] == named["last.bias"] == "parameters"
    assert named["last.weight.grad"] == "gradients" and named["exp_avg_sq of last.weight"] == "optimizer state"
    assert named["batch"] == "batch" and named["relu"] == "activations"
    assert named["mm in last"] == "temporaries", "the gradient of its input, in the backward"
    sizes = dict(zip(timeline.names, timeline.nbytes, strict=True))
    assert sizes[f"{ODD}.weight"] == sizes[f"exp_avg of {ODD}.weight"] == sizes[f"{ODD}.weight.grad"] == 4 * 16 * 64


def test_the_bars_are_the_lifetimes_of_the_blocks(fit: ts.types.Fit) -> None:
    timeline = fit.timeline
    drawing = step_lifetimes_drawing(timeline, LATER)
    names = drawing["layout"]["yaxis"]["ticktext"]
    bars = {}
    for trace in drawing["data"]:
        for start, length, row in zip(trace["base"], trace["x"], trace["y"], strict=True):
            bars[names[row]] = trace["name"], start, start + length
    end = len(timeline.events) + 1
    assert bars["parameters, 4 blocks"] == ("parameters", 0, end)
    number = timeline.names.index("relu")
    assert bars["relu"] == ("activations", timeline.births[number] + 1, timeline.deaths[number] + 1)
    # A block is alive at each index of `levels` that its bar covers: the level falls as the bar ends.
    kind, _, died = bars["relu"]
    levels = timeline.category_levels[kind]
    assert levels[died - 1] - levels[died] == timeline.nbytes[number] == 4 * 8 * 64
    sizes = [each["text"] for each in drawing["layout"]["annotations"] if each.get("xref") == "paper"]
    assert len(sizes) == len(names) and [each["x0"] for each in drawing["layout"]["shapes"]] == [
        phase.event for phase in timeline.phases
    ]


def test_a_curve_of_few_points_keeps_the_peak_and_the_last_level(fit: ts.types.Fit) -> None:
    timeline = fit.timeline
    for points in (5, 20, None):
        drawing = step_drawing(timeline, LATER, points)
        levels = [sum(column) for column in zip(*(trace["y"] for trace in drawing["data"]), strict=True)]
        assert max(levels) == pytest.approx(timeline.peak_bytes / 1024)
        assert levels[-1] == pytest.approx(timeline.levels[-1] / 1024)
        assert len(levels) <= (points or len(timeline.levels)) + 1


def test_the_page_has_table_curve_and_lifetimes_in_one_file(fit: ts.types.Fit, tmp_path: Path) -> None:
    page = fit.save_html(tmp_path / "fit.html", title=f"{ODD} & more").read_text(encoding="utf-8")
    ours, _, _ = page.partition('<script type="application/octet-stream" id="told">')
    assert "&lt;b&gt;&amp;x &amp; more" in ours and "<b>&x" not in ours and "src=" not in ours
    assert set(figures_told(page)) == {"memory", "lifetimes"}
    for kind in fit.timeline.category_levels:
        assert f"<dt>{kind}</dt>" in ours
    for phase in fit.phases:
        assert ours.count(phase.phase) >= 3, "in the table, above the curve and above the lifetimes"
    parameters, *_, activations, _ = [
        said_of(page, "lifetimes", trace, 0) for trace in range(len(fit.timeline.category_levels))
    ]
    says(activations, "relu", "2 KiB", "forward", "backward")
    says(parameters, 4, "before", "after")


def test_a_notebook_shows_the_same_without_scripts(fit: ts.types.Fit) -> None:
    shown = fit_html(fit)
    assert shown == fit._repr_html_() and shown.count("<svg") == 2 and "<script" not in shown
    assert "<b>&x" not in shown and f'fill="{AUTO["ink2"]}"' in shown, "texts are grey, for any theme"
