"""The page's side of a deck, in Python: what store.ts and replay.ts make of the document and of the news."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any
from unittest import mock

from tapescope.widgets.deck.deck import Deck


def unpacked(data: bytes) -> Any:
    return json.loads(gzip.decompress(data).decode("utf-8", "surrogatepass"))


class Page:
    """A page that was open before its deck told anything."""

    def __init__(self) -> None:
        self.deck: Deck | None = None
        self.document: dict[str, Any] = {}
        self.told: list[dict[str, Any]] = []
        self.heard = 0
        self._before: list[dict[str, Any]] = []
        self._lock = Lock()

    def open(self, deck: Deck) -> Page:
        with self._lock:
            self.deck = deck
            self.document = unpacked(deck.get_state()["_document"])
            revision = self.document["revision"]
            for news in self._before[revision:]:
                self._take(news)
        return self

    def receive(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        if content["kind"] == "heard":
            self.heard += 1
        elif content["kind"] == "news":
            with self._lock:
                news = unpacked(buffers[0])
                self.told.append(news)
                if self.deck is None:
                    self._before.append(news)
                else:
                    self._take(news)

    def send(self, **message: Any) -> None:
        """Return the messages that the page's link sends."""
        assert self.deck is not None
        self.deck._handle_custom_msg(message, [])

    def _take(self, news: dict[str, Any]) -> None:
        document = self.document
        for task in news["forgotten"]:
            document["records"].pop(str(task), None)
        document["records"] |= news["records"]
        document["metas"] = news["metas"]
        document["position"] = news["position"]
        document["groups"] = news["groups"] or document["groups"]
        live, *others = document["schedules"]
        document["schedules"] = [news["live"] or live, *(others if news["others"] is None else news["others"])]

    @property
    def position(self) -> int:
        return self.document["position"]

    @property
    def order(self) -> list[int]:
        return self.document["schedules"][0]["order"]

    @property
    def replay(self) -> Replay:
        return Replay(self.document, self.document["schedules"][0])

    @property
    def last(self) -> dict[str, Any]:
        return self.told[-1]


@contextmanager
def listening() -> Iterator[Page]:
    """Pass everything that decks send meanwhile to this page."""
    page = Page()

    def send(deck: Deck, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        page.receive(content, buffers or [])

    with mock.patch.object(Deck, "send", send):
        yield page


def settle(deck: Deck) -> None:
    """Waits until the deck has done all that it was asked for."""
    deck._live.driver.do(lambda: None).result()


class Replay:
    """One schedule as replay.ts sees it."""

    def __init__(self, document: dict[str, Any], schedule: dict[str, Any]) -> None:
        self._schedule = schedule
        self._texts, self._kinds = document["texts"], document["tasks"]["kind"]
        order, edges = schedule["order"], document["edges"]
        self.place = {task: place for place, task in enumerate(order)}
        missing: dict[int, int] = {}
        nexts: dict[int, list[int]] = {}
        for task, after in zip(edges["task"], edges["next"], strict=True):
            missing[after] = missing.get(after, 0) + 1
            nexts.setdefault(task, []).append(after)
        for root, _ in document["roots"]:
            missing[root] = missing.get(root, 0) + 1
        self.ready_at: dict[int, int] = {}
        self.arrival: dict[int, int] = {}

        def arrive(task: int, position: int) -> None:
            missing[task] -= 1
            if not missing[task] and task in self.place:
                self.ready_at[task] = position
                self.arrival[task] = len(self.arrival)

        for root, _ in document["roots"]:
            arrive(root, 0)
        for place, task in enumerate(order):
            for after in nexts.get(task, ()):
                arrive(after, place + 1)

    def running(self, t: int) -> int | None:
        order = self._schedule["order"]
        return order[t] if t < len(order) else None

    def queue(self, t: int) -> list[int]:
        """Return the ready tasks at a position, in the displayed order, the running one first."""
        return [task for task in self._schedule["order"][t:] if self.ready_at[task] <= t]

    def key(self, task: int) -> str:
        keys = self._schedule["keys"]
        if keys == "created":
            return "leaf" if self._texts[self._kinds[task]] == "accumulate_grad" else f"#{task}"
        return f"@{self.arrival[task]}" if keys == "arrival" else keys[task]
