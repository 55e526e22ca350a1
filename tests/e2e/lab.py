"""JupyterLab or Notebook in a real browser: a server with a separate home, and a notebook open in a page."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psutil
from playwright.sync_api import Locator, Page, WebSocket

from .chromium import HERE, trouble_of

SETTINGS = {  # no toast that asks to fetch news
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
CELL = {"cell_type": "code", "id": "first", "metadata": {}, "source": "", "outputs": [], "execution_count": None}
KERNELSPEC = {"name": "python3", "display_name": "Python 3", "language": "python"}
EMPTY = {"cells": [CELL], "metadata": {"kernelspec": KERNELSPEC}, "nbformat": 4, "nbformat_minor": 5}
START_S = 60.0  # of a server or a kernel, on a cold disk and busy cores

READY = """() => {
    const panel = window.jupyterapp?.shell.currentWidget;
    return panel?.sessionContext?.session?.kernel?.status === 'idle' && panel.content.model?.cells.length > 0;
}"""
KERNEL = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel"
ADD_CELL = """source => {
    const { content } = window.jupyterapp.shell.currentWidget;
    const index = content.model.cells.length;
    content.model.sharedModel.insertCell(index, { cell_type: 'code', source, metadata: { trusted: true } });
    content.activeCellIndex = index;
    return index;
}"""
RUN_CELL = """async index => {
    const { shell, commands } = window.jupyterapp;
    const { content } = shell.currentWidget;
    content.activeCellIndex = index;
    content.deselectAll();
    await commands.execute('notebook:run-cell');
}"""
CLEAR = """() => {
    const { model } = window.jupyterapp.shell.currentWidget.content;
    model.sharedModel.transact(() => {
        model.sharedModel.deleteCellRange(0, model.cells.length);
        model.sharedModel.insertCell(0, { cell_type: 'code', source: '' });
    });
}"""
OUTPUTS = "index => window.jupyterapp.shell.currentWidget.content.widgets[index].model.outputs.toJSON()"
EXECUTE = f"""async code => {{
    const future = {KERNEL}.requestExecute({{ code, store_history: false }});
    let said = '', failed = null;
    future.onIOPub = message => {{
        if (message.header.msg_type === 'stream') said += message.content.text;
        if (message.header.msg_type === 'error') failed = message.content.traceback.join('\\n');
    }};
    await future.done;
    return [said, failed];
}}"""


@dataclass(frozen=True, slots=True)
class Lab:
    """A running server."""

    url: str
    folder: Path


@contextmanager
def lab_server(folder: Path, application: str = "jupyterlab") -> Iterator[Lab]:
    """JupyterLab with its settings, kernels and notebooks below `folder`. Raises if a process of its outlives it.

    `application` is the module to run: `notebook` is Notebook 7.
    """
    home, root = folder / "home", folder / "notebooks"
    root.mkdir(parents=True)
    for name, content in SETTINGS.items():
        path = home / "settings" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
    port = _free_port()
    log = folder / "lab.log"
    with log.open("w") as stream:
        server = subprocess.Popen(
            _command(port, root, application), env=_environment(home), cwd=root, stdout=stream, stderr=stream
        )
    try:
        _wait_for(f"http://{HERE}:{port}/api/status", server, log)
        yield Lab(f"http://{HERE}:{port}", root)
    finally:
        _stop(server)


def _command(port: int, root: Path, application: str) -> list[str]:
    options = {
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.ip": HERE,
        "IdentityProvider.token": "",
        "ServerApp.password": "",
        "ServerApp.root_dir": root,
        "ServerApp.terminals_enabled": False,
        "KernelManager.shutdown_wait_time": 1,
        "LabApp.expose_app_in_browser": True,  # as window.jupyterapp
        "LabApp.extension_manager": "readonly",
        "LabApp.news_url": "",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    if application == "notebook":
        options["JupyterNotebookApp.expose_app_in_browser"] = True
    command = [sys.executable, "-m", application, "--no-browser", "--allow-root"]
    return [*command, *(f"--{name}={value}" for name, value in options.items())]


def _environment(home: Path) -> dict[str, str]:
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    return os.environ | {name: str(home / folder) for name, folder in folders.items()} | {"OMP_NUM_THREADS": "1"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


def _wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            urlopen(address, timeout=1).close()
            return
        except (URLError, OSError):
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.05)


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the server. Its kernels have separate process groups, so each is searched for."""
    kernels = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
    server.terminate()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    _, left = psutil.wait_procs(kernels, timeout=5)
    for process in left:
        process.kill()
    assert not left, f"outlived JupyterLab: {left}"


def _plain(traceback: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", traceback)


class Notebook:
    """A notebook open in a page of JupyterLab, with a separate kernel."""

    def __init__(self, page: Page, lab: Lab, name: str, at: str = "lab/tree/{}?reset") -> None:
        self.page = page
        self.trouble = trouble_of(page)
        self.sockets: list[WebSocket] = []
        page.on("websocket", lambda socket: self.sockets.append(socket))
        self.folder = lab.folder
        (lab.folder / f"{name}.ipynb").write_text(json.dumps(EMPTY), encoding="utf-8")
        page.goto(f"{lab.url}/{at.format(name + '.ipynb')}", wait_until="domcontentloaded")
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        self.page.wait_for_function(READY, timeout=START_S * 1000)

    def run(self, source: str) -> Cell:
        """Adds a cell, runs it to its end, and raises if it fails."""
        cell = self.add(source)
        cell.run()
        return cell

    def add(self, source: str) -> Cell:
        return Cell(self, self.page.evaluate(ADD_CELL, source))

    def kernel(self, code: str) -> str:
        """Return the output of this code in the kernel. No cell is added."""
        said, failed = self.page.evaluate(EXECUTE, code)
        assert failed is None, _plain(failed)
        return said.strip()

    def value(self, expression: str) -> Any:
        """Return the value of this expression in the kernel, through JSON."""
        return json.loads(self.kernel(f"import json as _json; print(_json.dumps({expression}))"))

    def wait_for(self, expression: str, limit_s: float = 15.0) -> None:
        """Waits until this expression is true in the kernel."""
        until = time.monotonic() + limit_s
        while not self.value(f"bool({expression})"):
            assert time.monotonic() < until, f"{expression} was never true"
            self.page.wait_for_timeout(20)

    def clear(self) -> None:
        """Deletes all cells, and with them their outputs."""
        self.page.evaluate(CLEAR)

    def reload(self) -> None:
        """Saves the notebook and loads the page anew; the kernel goes on."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        self.page.reload(wait_until="domcontentloaded")
        self.wait_until_idle()

    def interrupt(self) -> None:
        self.page.evaluate(f"() => {KERNEL}.interrupt()")

    def restart(self) -> None:
        self.page.evaluate(f"() => {KERNEL}.restart()")
        self.wait_until_idle()

    def theme(self, name: str) -> None:
        """`JupyterLab Light` or `JupyterLab Dark`."""
        self.page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", name)
        self.page.wait_for_function("name => document.body.dataset.jpThemeName === name", arg=name)
        # JupyterLab throws when a second change comes before the first one's veil is gone.
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the open notebook."""

    notebook: Notebook
    index: int

    def run(self) -> None:
        self.notebook.page.evaluate(RUN_CELL, self.index)
        failed = [output for output in self.outputs if output["output_type"] == "error"]
        assert not failed, _plain("\n".join(failed[0]["traceback"]))

    def start(self) -> None:
        """Runs the cell without waiting for its end."""
        self.notebook.page.evaluate(f"index => {{ ({RUN_CELL})(index); }}", self.index)

    @property
    def outputs(self) -> list[dict[str, Any]]:
        return self.notebook.page.evaluate(OUTPUTS, self.index)

    @property
    def kinds(self) -> list[list[str]]:
        """The types of what the cell shows, one list an output; `error` for a traceback."""
        return [[*output.get("data", {output["output_type"]: None})] for output in self.outputs]

    @property
    def element(self) -> Locator:
        """The cell on the page, its outputs included."""
        return self.notebook.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell").nth(self.index)

    @property
    def text(self) -> str:
        """Return the cell's printed text, and the text of the outputs that it displays."""
        parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in self.outputs]
        return "".join("".join(part) for part in parts)
