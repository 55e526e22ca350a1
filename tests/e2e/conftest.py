from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from .chromium import chromium, find_chromium, trouble_of
from .lab import Lab, Notebook, lab_server
from .shown import ShownDeck
from .tab import Tab

expect.set_options(timeout=15_000)  # where all cores are busy; what is well takes milliseconds


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium. Where none is installed its tests are skipped, except in CI, where they fail."""
    if find_chromium() is None and os.environ.get("CI") != "true":
        pytest.skip("needs Chromium")
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def session_tab(browser: Browser) -> Tab:
    return Tab(browser)


@pytest.fixture
def tab(session_tab: Tab) -> Iterator[Tab]:
    """Opens pages, one at a time."""
    yield session_tab
    session_tab.leave()


@pytest.fixture
def page(tab: Tab) -> Iterator[Page]:
    """Nothing may go wrong on it."""
    page = tab.open(viewport={"width": 1420, "height": 900})
    trouble = trouble_of(page)
    yield page
    tab.leave()
    assert trouble == []


@pytest.fixture
def browser_without_scripts(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(java_script_enabled=False)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab_server(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(scope="session")
def open_notebook(lab: Lab, browser: Browser) -> Iterator[Notebook]:
    """One notebook and kernel for all tests: torch takes two seconds to import."""
    page = browser.new_page(viewport={"width": 1400, "height": 1200})
    notebook = Notebook(page, lab, "deck")
    notebook.kernel(SET_ASIDE)
    yield notebook
    page.close()


# As in tests/conftest.py, sessions do not search for hooks in everything that was imported.
SET_ASIDE = """
import gc as _gc, torch._dynamo, ipywidgets, tapescope.widgets.deck.deck
_gc.freeze()
_gc.get_freeze_count = lambda: 0
"""


# The tests' modules in the kernel use the names `model`, and `expected`: its gradients under PyTorch.
GRADIENTS_AGREE = "all(torch.equal(a.grad, b) for a, b in zip(model.parameters(), expected, strict=True))"
REMEMBER = "import threading as _threading; _before = set(_threading.enumerate())"
CLOSE_ALL = """
import threading as _threading, time as _time
from ipywidgets import Widget as _Widget
_Widget.close_all()
_until = _time.monotonic() + 5
while True:
    _new = set(_threading.enumerate()) - _before
    _left = [each for each in _new if not type(each).__module__.startswith(("ipykernel", "zmq"))]
    if not _left or _time.monotonic() > _until: break
    _time.sleep(0.02)
print(*[each.name for each in _left])
"""


@pytest.fixture
def notebook(open_notebook: Notebook) -> Iterator[Notebook]:
    """The notebook without cells. After the test nothing may have gone wrong, and no thread be left."""
    open_notebook.trouble.clear()
    open_notebook.kernel(REMEMBER)
    yield open_notebook
    left = open_notebook.kernel(CLOSE_ALL)
    open_notebook.clear()
    assert left == "", "threads of the deck outlive it"
    assert open_notebook.trouble == []


@pytest.fixture
def shown(lab_page: Notebook) -> ShownDeck:
    """A deck at its start, `deck` in the kernel, on what a module's own `lab_page` has there."""
    return ShownDeck(lab_page.run("deck = ts.debug(captured(), policy='heap')").element)
