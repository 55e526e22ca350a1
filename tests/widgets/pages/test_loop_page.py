"""A training loop as HTML: its numbers and findings inside, names text, a table where no script runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import tapescope as ts
from tapescope.engine.training.training_file import read_document
from tapescope.engine.training.training_result import Training
from tapescope.tests.says import says

pytestmark = pytest.mark.filterwarnings("ignore:ts.training:UserWarning")

NAME = "</script><b>"


@pytest.fixture(scope="module")
def trained() -> Training:
    model = nn.ModuleDict({NAME: nn.Linear(2, 2), "<!--": nn.Linear(2, 1)})
    optimizer = torch.optim.SGD([*model.parameters(), torch.ones(1, requires_grad=True)], lr=0.1)
    with ts.training(model, optimizer) as training:
        for _ in range(30):
            optimizer.zero_grad()
            model["<!--"](model[NAME](torch.ones(3, 2))).sum().backward()
            optimizer.step()
    return training


def content(html: str) -> str:
    (found,) = re.findall(r'<script type="application/json">(.*?)</script>', html)
    return str(found)


def test_the_document_is_inside_as_it_is(trained: Training, tmp_path: Path) -> None:
    page = trained.save_html(tmp_path / "loop.html", "<i>mine").read_text(encoding="utf-8")
    *modules, others = read_document(content(page)).modules
    assert modules == ["<!--", NAME]
    says(others, "SGD")
    assert torch.equal(read_document(content(page)).gradients, trained.norms.gradients)
    assert "<i>mine" not in page and page.count("&lt;i&gt;mine") == 2


def test_names_of_modules_are_text(trained: Training) -> None:
    html = trained._repr_html_()
    assert html.count("</script>") == 2 and html.count("<!--") == 0 and "<b>" not in content(html)


def test_without_a_script_findings_are_a_table(trained: Training) -> None:
    html = trained._repr_html_()
    assert html.count("<tr>") == 1 + len(trained.findings) > 1
    says(html, "30 steps")


def test_a_page_loads_nothing_and_may_send_nothing(trained: Training, tmp_path: Path) -> None:
    page = trained.save_html(tmp_path / "loop.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not re.search(r"\b(?:src|href)=", page.replace("http://www.w3.org", ""))


def test_a_long_loop_is_pooled_in_a_notebook_alone(tmp_path: Path) -> None:
    training = ts.training(nn.Linear(1, 1))
    norms = training.norms
    norms.name([f"layer.{each}" for each in range(50)], list(range(50)), ["SGD"])
    gradients = torch.rand(6000, 50)
    gradients[4321, 7] = torch.inf
    norms.add(range(6000), gradients, torch.ones(6000, 3))
    saved = read_document(content(training.save_html(tmp_path / "loop.html").read_text(encoding="utf-8")))
    shown = read_document(content(training._repr_html_()))
    assert torch.equal(saved.gradients, gradients)
    assert shown.gradients.numel() <= 100_000 and shown.rows[-1, 1] == 5999
    assert shown.gradients.isinf().sum() == 1, "what is wrong is never lost"
