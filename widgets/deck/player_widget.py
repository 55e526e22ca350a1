"""The base of the widgets of a live session and of a recorded run: the page and its shared data."""

from __future__ import annotations

import hashlib
import sys
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets
import traitlets
from IPython.display import display

from ...errors import ending_where_called
from ...inspector.graph.graph import Graph
from .auto_display import is_held, is_laid_out_by, names_of
from .save_deck import CODE
from .still_picture import Moment, Still

_PAGE = CODE.read_text(encoding="utf-8")

# A page never frees an imported module, and anywidget imports one for each widget, so a cell that runs repeatedly
# would fill the page's memory. This module is therefore small, and shares one module with the deck's code. JupyterLab
# does not free the models of closed widgets either, so large values are removed from them; twice, since models keep
# the previous value.
_LOADER = """
const modules = (globalThis.tapescopeModules ??= new Map());
function shared(model) {
  const version = "VERSION";
  if (!modules.has(version)) {
    const address = URL.createObjectURL(new Blob([model.get("_code")], { type: "text/javascript" }));
    const loading = import(address).finally(() => URL.revokeObjectURL(address));
    loading.catch(() => modules.delete(version));
    modules.set(version, loading);
  }
  return modules.get(version);
}
export default {
  async initialize(given) {
    const end = await (await shared(given.model)).default.initialize(given);
    return () => {
      end();
      const { model } = given;
      for (const value of [null, ""]) for (const name of ["_code", "_document"]) model.set(name, value);
    };
  },
  async render(given) { return (await shared(given.model)).default.render(given); },
};
""".replace("VERSION", hashlib.sha256(_PAGE.encode()).hexdigest()[:16])


class Played(anywidget.AnyWidget):
    """A widget whose page plays one backward.

    selection: the id of the selected task, or None.
    breakpoints: the ids of the tasks before which playing stops.

    When displayed, it also stores a picture of the graph, for readers without scripts. It closes itself when its last
    view is closed and no variable of the user holds it.
    """

    # Text instead of a path, for which anywidget creates an object that refers to every widget ever made.
    _esm = _LOADER
    _code = traitlets.Unicode(_PAGE).tag(sync=True)
    _id = traitlets.Unicode().tag(sync=True)
    # A reloaded page requests everything and gets the current state.
    _document = traitlets.Bytes().tag(sync=True, to_json=lambda _, widget: widget.packed())
    _is_live = traitlets.Bool().tag(sync=True)
    selection = traitlets.Int(None, allow_none=True).tag(sync=True)
    breakpoints = traitlets.List(traitlets.Int()).tag(sync=True)

    if not TYPE_CHECKING:  # for mypy, any name could be set

        @ending_where_called
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)

    def __init__(self, graph: Graph, title: str, **traits: Any) -> None:
        self._shown = False
        super().__init__(_id=uuid.uuid4().hex, **traits)
        self._still = Still(self._id, title, replace(graph, nodes=()))  # a picture needs none, and may live long
        self.on_msg(self._hear)

    def packed(self) -> bytes:
        """Return the page's data, see `page_data.py`."""
        raise NotImplementedError

    def moment(self) -> Moment:
        """The moment that the still picture shows."""
        raise NotImplementedError

    @property
    def is_shown(self) -> bool:
        """True if it has been displayed, directly or inside another widget."""
        return self._shown or is_held(self)

    def _ipython_display_(self, **kwargs: Any) -> None:
        self._shown = True
        if self.comm is None:  # closed: ipywidgets has taken _repr_mimebundle_ away
            display({"text/plain": repr(self)}, raw=True)
            return
        data, metadata = self._repr_mimebundle_(**kwargs)
        display(data, metadata=metadata, raw=True)
        self._still.show(self.moment(), repr(self))

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        self._shown = True
        return super()._repr_mimebundle_(**kwargs)

    def _hear(self, _: ipywidgets.Widget, message: Any, buffers: object) -> None:
        """Handle a message of the page. May be called in any thread."""
        match message:
            case {"kind": "breakpoint", "task": int(task), "on": bool(on)}:
                self.breakpoints = sorted({*self.breakpoints, task} if on else {*self.breakpoints} - {task})
            case {"kind": "unseen"} if not names_of(self):
                self._still.release()
                self.close_unseen()

    def close(self) -> None:
        """Remove the widget from the page, and leave a picture of its last state."""
        if hasattr(self, "_still") and not sys.is_finalizing():
            self._still.end()
        layout = None if self.comm is None else self.layout
        super().close()
        if layout is not None and not is_laid_out_by(layout):  # ipywidgets leaves it, and its model on the page
            layout.close()

    def close_unseen(self) -> None:
        """Close the widget after its last view is closed and no variable holds it."""
        self.close()
