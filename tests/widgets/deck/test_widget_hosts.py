"""Requirements of widget hosts that cannot run here, from their published sources: Colab, VS Code.

Colab: googlecolab/colabtools, google/colab/output/_widgets.py. VS Code: the page on widgets in the
wiki of microsoft/vscode-jupyter.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import files
from types import ModuleType, SimpleNamespace

import pytest
import torch
from anywidget import _util as of_anywidget
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import tapescope as ts
from tapescope.widgets.deck.deck import Deck

VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def deck() -> Iterator[Deck]:
    InteractiveShell.instance()
    made = ts.deck(torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum())
    yield made
    made.close()
    InteractiveShell.clear_instance()


@pytest.fixture
def colab(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return a stand-in for Colab's widget manager, and the number of its requests."""
    asked: list[str] = []
    module = ModuleType("google.colab.output")
    module._widgets = SimpleNamespace(_installed_url="https://colab/manager.js")  # type: ignore[attr-defined]
    module.enable_custom_widget_manager = lambda: asked.append("enabled")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    of_anywidget.enable_custom_widget_manager_once.cache_clear()
    yield asked
    of_anywidget.enable_custom_widget_manager_once.cache_clear()


def test_on_colab_a_deck_brings_the_manager_that_shows_it(colab: list[str], deck: Deck) -> None:
    with capture_output() as captured:
        deck._ipython_display_()
    shown = next(output for output in captured.outputs if VIEW in output.data)
    assert shown.metadata[VIEW]["colab"]["custom_widget_manager"]["url"] == "https://colab/manager.js"
    assert colab == ["enabled"], "by itself: no line of the user's is needed"


def test_in_vs_code_the_only_script_from_a_file_is_anywidgets_which_is_installed(deck: Deck) -> None:
    state = deck.get_state()
    assert {state["_view_module"], state["_model_module"]} == {"anywidget"}
    installed = {path.as_posix() for path in files("anywidget") or ()}
    assert any(path.endswith("share/jupyter/nbextensions/anywidget/index.js") for path in installed)
    loaded = re.findall(r"""\b(?:import|from)\s*\(?\s*["'](?:https?:)?[/.\w@]""", str(state["_esm"]))
    assert not loaded, "the deck's own module comes whole, from the kernel"
