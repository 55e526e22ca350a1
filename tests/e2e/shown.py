"""A deck on a page, as a reader finds it: its state in data-*, its controls by what they are called."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from playwright.sync_api import Locator, Page, expect

T = TypeVar("T")

COLOURS = """canvas => {
    if (!canvas.width || !canvas.height) return 0;
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
}"""

Within = Page | Locator


class ShownDeck:
    """One view of a deck. Locators look through its shadow root."""

    def __init__(self, within: Within, nth: int = 0) -> None:
        self.root = within.locator(".tapescope-deck .deck").nth(nth)
        self.root.wait_for()
        if self.root.bounding_box():  # hidden, it draws nothing
            self.rests()

    def rests(self) -> None:
        """Wait until every requested frame has been drawn and nothing moves any more."""
        expect(self.root).to_have_attribute("data-rests", "")

    def expect(self, **data: object) -> None:
        """Waits until the deck says so: t=3 is data-t="3"."""
        for name, value in data.items():
            expect(self.root).to_have_attribute(f"data-{name}", str(value))

    def data(self, name: str) -> str:
        found = self.root.get_attribute(f"data-{name}")
        assert found is not None
        return found

    def press(self, act: str) -> None:
        """A button of the transport: start, back, play, step, breakpoint or end."""
        self.root.get_by_role("group", name="transport").locator(f"button[data-act={act}]").click()

    def key(self, key: str) -> None:
        """Presses a key while the focus is on the deck itself."""
        self.root.focus()
        self.root.page.keyboard.press(key)

    def unfold_all(self) -> None:
        """Each task is by itself: the first view folds what is alike, so that all is read at once."""
        self.key("Shift+BracketRight")
        expect(self.mirror.locator("[aria-expanded='false']")).to_have_count(0)

    @property
    def tabs(self) -> Locator:
        return self.root.get_by_role("tablist", name="policy").get_by_role("tab")

    def show_policy(self, policy: str) -> None:
        self.root.locator(f"[role=tab][data-policy={policy}]").click()

    def speed(self, tasks_per_second: int) -> None:
        self.root.get_by_label(re.compile("^speed")).select_option(str(tasks_per_second))

    def scrub(self, t: int) -> None:
        """Moves the slider, as dragging it does."""
        self.root.locator("input.position").fill(str(t))

    def search(self, words: str) -> Locator:
        """Types into the search field. Gives what is offered."""
        self.root.get_by_label("find a task").fill(words)
        return self.root.get_by_role("listbox", name="matching tasks").get_by_role("option")

    def task(self, task: int) -> Locator:
        """The task in the list of what is in view, which stands for the picture."""
        return self.mirror.locator(f"[data-task='{task}']")

    @property
    def mirror(self) -> Locator:
        return self.root.locator("[data-mirror=graph]")

    @property
    def tasks(self) -> Locator:
        return self.mirror.locator("[data-task]")

    @property
    def boxes(self) -> Locator:
        return self.mirror.locator("[aria-expanded]")

    def state(self, task: int) -> str | None:
        return self.task(task).get_attribute("data-state")

    @property
    def states(self) -> dict[int, str]:
        """Return the state of each task in view. Folded modules hide theirs."""
        found = self.tasks.evaluate_all("all => all.map(each => [Number(each.dataset.task), each.dataset.state])")
        return dict(found)

    def settles(self, read: Callable[[ShownDeck], T], wanted: T, limit_s: float = 15.0) -> None:
        """Waits until what is read of the deck is what is wanted: the list follows the picture by a frame or two."""
        until = time.monotonic() + limit_s
        while (found := read(self)) != wanted and time.monotonic() < until:
            self.root.page.wait_for_timeout(20)
        assert found == wanted

    def box(self, path: str) -> Locator:
        """The button of a module: folds and unfolds it."""
        return self.mirror.locator(f"[data-path='{path}']").first

    def activate(self, entry: Locator) -> None:
        """Presses Enter on something of the list: it is there for the keyboard and for screen readers alone."""
        entry.focus()
        self.root.page.keyboard.press("Enter")

    def save_picture(self, what: str) -> None:
        """Chooses from the menu: `svg whole`, `svg seen`, `png whole` or `png seen`."""
        self.root.locator(".save [aria-haspopup]").click()
        self.root.locator(f"[data-save='{what}']").click()

    @property
    def queue(self) -> list[int]:
        """The ids of the rows of the ready queue, in their order."""
        rows = self.root.locator(".queue [data-task]")
        return [int(each) for each in rows.evaluate_all("all => all.map(row => row.dataset.task)")]

    @property
    def inspector(self) -> Locator:
        return self.root.locator(".insp")

    def canvas_is_drawn(self, selector: str) -> bool:
        """Return whether the canvas has a size and more than one colour."""
        return bool(self.root.locator(selector).first.evaluate(COLOURS) > 1)

    def evaluate(self, script: str, argument: Any = None) -> Any:
        return self.root.evaluate(script, argument)
