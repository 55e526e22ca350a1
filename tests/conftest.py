from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch

WIDGETS = Path(__file__).parents[1] / "widgets"


def pytest_configure() -> None:
    """Lets tests press Ctrl-C: what a shell starts in the background ignores it, and so do its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs CUDA"))


@pytest.fixture(scope="session")
def page_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of widgets/js with its packages, so that building it changes nothing here.

    Tests that use it are in the xdist group "bundle": one `npm ci` is enough.
    """
    if shutil.which("npm") is None and os.environ.get("CI") != "true":
        pytest.skip("needs npm")
    copy = tmp_path_factory.mktemp("widgets") / "js"
    shutil.copytree(WIDGETS / "js", copy, ignore=shutil.ignore_patterns("node_modules", "out"))
    packages = WIDGETS / "js" / "node_modules"
    if packages.exists():
        (copy / "node_modules").symlink_to(packages)
    else:
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=copy, check=True)
    return copy
