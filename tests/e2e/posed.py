"""A deck whose kernel is the test: it sees what the page asks for, and says what has happened."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from tapescope.widgets.deck.save_deck import CODE

from .shown import ShownDeck

# Like anywidget's model: `set` reports a change at once.
POSED = """
const bytes = text => Uint8Array.from(atob(text), each => each.charCodeAt(0));
const zipped = async content => {
    const stream = new Blob([JSON.stringify(content)]).stream().pipeThrough(new CompressionStream('gzip'));
    return new DataView(await new Response(stream).arrayBuffer());
};
const { default: widget } = await import(URL.createObjectURL(new Blob([bytes('CODE')], { type: 'text/javascript' })));
const listeners = {};
const values = {
    _id: 'posed', _is_live: LIVE, _document: new DataView(bytes('DOCUMENT').buffer), _stops: [], breakpoints: [],
    selection: null,
};
window.sent = [];
window.values = values;
const model = {
    get: name => values[name],
    set: (name, value) => { values[name] = value; listeners[`change:${name}`]?.(); },
    save_changes: () => {},
    send: content => window.sent.push(content),
    on: (event, listener) => { listeners[event] = listener; },
    off: () => {},
    widget_manager: { kernel: { statusChanged: { connect: slot => { window.status_changed = slot; } } } },
};
window.tell = async news => listeners['msg:custom']({ kind: 'news' }, [await zipped(news)]);
window.lose = () => listeners.comm_live_update();
window.put = (name, value) => model.set(name, value);
widget.initialize({ model });
await widget.render({ model, el: document.getElementById('deck') });
"""


class PosedDeck(ShownDeck):
    """A deck on a separate page. `document` is packed by widgets/deck/page_data.py, with its `metas`."""

    def __init__(
        self, page: Page, path: Path, document: bytes, metas: list[dict[str, Any]], *, is_live: bool = True
    ) -> None:
        code = base64.b64encode(CODE.read_bytes()).decode()
        script = POSED.replace("LIVE", str(is_live).lower())
        script = script.replace("CODE", code, 1).replace("DOCUMENT", base64.b64encode(document).decode(), 1)
        path.write_text(
            "<!doctype html><meta charset=utf-8><body style='margin: 0'><div id=deck></div>"
            f"<script type=module>{script}</script>",
            encoding="utf-8",
        )
        page.goto(path.as_uri())
        super().__init__(page)
        self.page = page
        self.metas = metas
        self.told: dict[str, Any] = {
            "position": 0, "current": None, "status": "stopped", "trouble": "", "stopped": None, "history": None,
        }  # fmt: skip

    def tell(self, **news: Any) -> None:
        """Publish the present state; lasting parts are repeated each time."""
        self.told |= {name: value for name, value in news.items() if name in self.told}
        once = {"forgotten": [], "records": {}, "checks": {}, "live": None, "others": None, "branches": None}
        self.page.evaluate("news => window.tell(news)", {**once, "metas": self.metas, **self.told, **news})

    def lose_kernel(self) -> None:
        """The kernel restarts: JupyterLab's widget manager says so to each model."""
        self.page.evaluate("() => window.lose()")

    def kernel_status(self, status: str) -> None:
        """The kernel's status changes, as JupyterLab says it to all that listen."""
        self.page.evaluate("status => window.status_changed(null, status)", status)

    def stops(self, *entries: dict[str, Any]) -> None:
        """The breakpoints and watchpoints that Python has."""
        filled = [{"enabled": True, "hits": 0, "tasks": [], "calls": [], **each} for each in entries]
        self.page.evaluate("stops => window.put('_stops', stops)", filled)

    def asked(self) -> list[dict[str, Any]]:
        """Return the page's requests since the last call, except those for the present state."""
        sent: list[dict[str, Any]] = self.page.evaluate("() => window.sent.splice(0)")
        return [each for each in sent if each["kind"] not in ("hello", "inspect")]

    def value(self, name: str) -> Any:
        """A trait as the page has set it."""
        return json.loads(self.page.evaluate("name => JSON.stringify(window.values[name])", name))
