"""The page of a training loop as a widget, which can show a kept step's backward in a live deck."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import anywidget
import ipywidgets
import traitlets
from IPython.utils.capture import capture_output

from ...engine.training.black_box.replay import replay
from ...engine.training.step import TrainingStep
from ...engine.training.training_file import kept_steps
from ...engine.training.training_result import Training
from .loop_page import CODE, live_html

_ESM = """
// Look for an element once per frame, for some seconds at most, and call `then` with it.
const soon = (find, then, frames = 600) => {
  const found = find();
  if (found) then(found);
  else if (frames) requestAnimationFrame(() => soon(find, then, frames - 1));
};
const seen = (element) => (element?.getClientRects().length ? element : null);

export default { render({ model, el }) {
  el.innerHTML = model.get("content");
  const root = el.firstElementChild;
  root.addEventListener("tapescope-open", (event) => model.send({ open: event.detail }));
  const back = document.createElement("button");
  const title = "Back to the training loop (Esc)";
  Object.assign(back, { type: "button", className: "back", textContent: "‹ loop", title });
  root.prepend(back);
  const place = () => root.classList.toggle("away", model.get("away"));
  // The page comes back before Python has answered, because the kernel may be busy or gone.
  const leave = () => {
    root.classList.remove("away");
    room()?.querySelector(".tapescope-deck")?.style.setProperty("display", "none");
    model.send({ leave: true });
  };
  back.addEventListener("click", leave);
  model.on("change:away", place);
  place();
  const script = document.createElement("script");
  script.textContent = model.get("code");
  const room = () => el.closest(".tapescope-loop");
  const put = () => {
    if (!el.isConnected) return requestAnimationFrame(put); // the script looks for the loop's root in the document
    el.append(script);
    room()?.addEventListener("tapescope-leave", leave);
  };
  put();
  // Removing the previously focused element later moves the focus to the body, so take it back for some frames.
  const hold = (found, frames = 60) => {
    if (document.activeElement === document.body) found.focus({ preventScroll: true });
    if (frames) requestAnimationFrame(() => hold(found, frames - 1));
  };
  const focus = (find) => soon(() => seen(find()), (found) => {
    found.focus({ preventScroll: true });
    hold(found);
  });
  const hear = ({ shown }) => {
    if (shown === "page") focus(() => root.querySelector(".moving").shadowRoot?.querySelector(".picture"));
    else focus(() => room()?.querySelector(".tapescope-deck")?.shadowRoot?.querySelector(".deck"));
  };
  model.on("msg:custom", hear);
  return () => {
    model.off("msg:custom", hear);
    model.off("change:away", place);
  };
} };
"""


class _Page(anywidget.AnyWidget):
    """The page itself. It sends the step to open, and a message when its button or Escape leaves the deck.

    It receives the name of the part shown last, which then gets the keyboard focus. While `away`, a deck is in its
    place, and only the button back is shown.
    """

    _esm = _ESM
    content = traitlets.Unicode().tag(sync=True)
    code = traitlets.Unicode().tag(sync=True)
    away = traitlets.Bool().tag(sync=True)


class LoopPage(ipywidgets.VBox):
    """A training loop's page in a notebook. See `Training.page`.

    Attributes:
        deck: the deck shown in place of the page, or None if the page is shown.
    """

    def __init__(
        self,
        training: Training,
        make_model: Callable[[], Any] | None,
        loss_of: Callable[[Any, Any], Any] | None,
        recorded: Mapping[int, TrainingStep],
    ) -> None:
        self.deck: Any = None
        self._recorded = recorded
        self._kept = {} if make_model is None else kept_steps(training)
        self._functions: Any = make_model, loss_of
        code = CODE.read_text(encoding="utf-8")
        self._page = _Page(content=live_html(training, "Training loop", {**self._kept, **recorded}), code=code)
        self._page.on_msg(self._on_message)
        self._error = ipywidgets.HTML()
        # The page has to stay the first child: moving it would reset its selection. CSS puts the error above it.
        self._error.layout = ipywidgets.Layout(order="-1")
        super().__init__([self._page])
        self.add_class("tapescope-loop")

    def _on_message(self, _: object, message: Any, buffers: object) -> None:
        if not isinstance(message, dict):
            return
        if isinstance(step := message.get("open"), int):
            self.open_step(step)
        elif message.get("leave"):
            self.close_deck()

    def open_step(self, step: int) -> None:
        """Show a deck of a step's backward in place of the page. Errors are shown above the page.

        A kept step is replayed; for a recorded step, the recording is shown.
        """
        self.close_deck()
        try:
            # A deck displays itself when it is created. Outside of a cell, that output would end up elsewhere.
            with capture_output(stdout=False, stderr=False):
                if step in self._kept:
                    self.deck = replay(self._kept[step], *self._functions).deck()
                elif step in self._recorded:
                    self.deck = self._recorded[step].deck()
                else:
                    kept = ", ".join(map(str, self._kept)) or "none"
                    recorded = f"; recorded: {', '.join(map(str, self._recorded))}" if self._recorded else ""
                    raise ValueError(f"step {step} is not kept; kept: {kept}{recorded}")
        except Exception as error:
            self._error.value = f"<b>{escape(f'{type(error).__name__}: {error}')}</b>"
            self.children = [self._page, self._error]
            return
        self._page.away = True
        self.children = [self._page, self.deck]
        self._page.send({"shown": "deck"})

    def close_deck(self) -> None:
        """Close the deck and show the page."""
        deck, self.deck = self.deck, None
        self._page.away = False
        self.children = [self._page]
        if deck is not None:
            deck.close()
            self._page.send({"shown": "page"})
