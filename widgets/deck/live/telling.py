"""What pages are told of a live session, and what one that opens late has missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Lock

from ..document import Document, Json, packed
from .news import News


class Telling:
    """Passes news on to the document and to the pages, and remembers what a page needs that missed some.

    Args:
        document: the page's data.
        told: how the session stands.
        send: sends a message with its buffers to all pages.
    """

    def __init__(self, document: Document, told: News, send: Callable[[Json, list[bytes]], None]) -> None:
        self._document = document
        self._told = told
        self._send_message = send
        self._forgotten: set[int] = set()
        self._checks: Json = {}
        self._replayed: Json = {}
        self._branches: list[Json] = []
        self._lock = Lock()

    def take(self, news: News) -> None:
        """Something has happened."""
        with self._lock:
            self._forgotten.update(news.forgotten)
            self._checks.update(news.checks)
            self._replayed.update(news.replayed)
            self._branches = self._branches if news.branches is None else news.branches
            self._document.content |= {
                "branches": self._branches,
                "checks": self._checks.copy(),
                "replayed": self._replayed.copy(),
            }
            if news.groups is not None:
                self._document.content["groups"] = news.groups
            self._told = replace(
                news,
                records={},
                forgotten=(),
                live=None,
                others=None,
                checks={},
                branches=None,
                groups=None,
                replayed={},
            )
            self._document.take(news.position, news.records, news.live, news.others, news.forgotten)
            self._send(news)

    def greet(self, revision: int) -> None:
        """A page has opened: it hears how things are, and what it has missed since its document was packed."""
        with self._lock:
            content, news = self._document.content, self._told
            if content["revision"] != revision:
                live, *others = content["schedules"]
                forgotten = tuple(sorted(self._forgotten))
                records = content["records"].copy()
                groups = content["groups"]
                news = replace(news, forgotten=forgotten, records=records, live=live, others=others, groups=groups)
            self._send(
                replace(news, checks=self._checks.copy(), branches=self._branches, replayed=self._replayed.copy())
            )

    def _send(self, news: News) -> None:
        content = {name: getattr(news, name) for name in News.__slots__}
        self._send_message({"kind": "news"}, [packed(content | {"metas": self._document.metas})])
