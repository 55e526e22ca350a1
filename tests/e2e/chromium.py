"""A headless Chromium that reaches this machine and nothing else, and a record of what goes wrong on its pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, sync_playwright

ARGUMENTS = [  # no sandbox: tests may run as root; the others keep Chromium from talking to the network
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
HERE = "127.0.0.1"


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


LABS_OWN = "Canceled future for create_subshell_request"
"""JupyterLab throws it when a kernel is restarted while a subshell is being asked for; nobody catches it there."""


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), headless=True, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def trouble_of(page: Page) -> list[str]:
    """A list that fills with the page's errors and with every request that would leave this machine."""
    trouble: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error":
            trouble.append(f"console: {message.text} ({message.location.get('url')})")

    def asked(request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob", "file") and address.hostname != HERE:
            trouble.append(f"request to {request.url}")

    def thrown(error: Error) -> None:
        if LABS_OWN not in str(error):
            trouble.append(f"thrown: {error}\n{error.stack}")

    page.on("console", heard)
    page.on("pageerror", thrown)
    page.on("request", asked)
    page.on("websocket", lambda socket: None if urlsplit(socket.url).hostname == HERE else trouble.append(socket.url))
    return trouble
