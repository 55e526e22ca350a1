from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import torch

from tapescope.tests.says import Snapshots

from . import second_device
from .contrast import Read, texts_of
from .leftovers import HOOKS, Leftovers
from .torch_warnings import torch_warnings
from .warm_python import WarmPython, warm_python

if TYPE_CHECKING:
    from xdist.remote import Producer

    from .distribution import WholeFiles

BEFORE = pytest.StashKey[Leftovers]()
FAILED = pytest.StashKey[bool]()
STATUS = pytest.StashKey[int]()

WIDGETS = Path(__file__).parents[1] / "widgets"

frozen_count = gc.get_freeze_count

os.environ.setdefault("TAPESCOPE_TRACEBACKS", "full")  # who works on tapescope wants to see where an error is raised


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    gc.disable()  # no object of the test modules is garbage yet, and to find that out takes a quarter of the time
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[pytest.CollectReport]:
    """Every other worker collects from the last file to the first, so that two compile half of the modules each.

    Where nothing has been compiled yet, a worker finds the other's bytecode from the middle on.
    """
    report = yield
    if isinstance(collector, pytest.Directory) and int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 2:
        report.result.reverse()
    return report


def pytest_collection_finish() -> None:
    gc.get_freeze_count = lambda: 0  # HookWatch reckons with hooks of what is frozen: of this there are none
    set_aside()


@pytest.fixture
def left_behind() -> Callable[[], list[str]]:
    """Tells in sentences what is otherwise than before the test: hooks, modes, threads, profilers, locks."""
    return Leftovers().sentences


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Snapshots:
    """Compares a whole text with the one in tests/snapshots, see `Snapshots`."""
    path = Path(request.node.path).relative_to(Path(__file__).parent)
    title = f"{path.as_posix()}::{request.node.nodeid.partition('::')[2]}"
    return Snapshots(title, update=request.config.getoption("update_snapshots"))


@pytest.fixture(scope="module", autouse=True)
def _what_was_there_is_set_aside() -> None:
    set_aside()


def set_aside() -> None:
    """Takes what is there out of sight of the garbage collector, and of those who look for hooks among its objects.

    Each such look, several a session, goes through all of the process: with what tests import half a million objects,
    none of which is of a test's graph.
    """
    if len(gc.get_objects()) > 20_000:
        gc.collect()
        gc.freeze()


@pytest.fixture
def nothing_set_aside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a test that freezes objects itself."""
    monkeypatch.setattr(gc, "get_freeze_count", frozen_count)
    gc.unfreeze()
    yield
    gc.freeze()  # the hooks of tests before this one were in sight again


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[BEFORE] = Leftovers()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    if not item.config.getoption("warnings_of_torch_are_errors"):
        return (yield)
    with torch_warnings() as found:
        result = yield
    if found:
        pytest.fail("torch warns of calls from tapescope: " + "; ".join(dict.fromkeys(found)), pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """A test that passed fails here, once its fixtures are gone, if it leaves something behind."""
    result = yield
    if item.get_closest_marker("e2e"):  # what it drives lives on from test to test
        return result
    allowed = {HOOKS} if item.get_closest_marker("leaves_hooks") else set()
    left = [each for each in item.stash[BEFORE].sentences() if each not in allowed]
    if left and not item.stash.get(FAILED, False):
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:  # its traceback keeps what it had
        item.stash[FAILED] = True
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> WholeFiles | None:
    if config.getvalue("dist") != "loadfile":
        return None
    from .distribution import WholeFiles

    return WholeFiles(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--second-device", action="store_true", help="run on the second device (tests/second_device)")
    parser.addoption(
        "--warnings-of-torch-are-errors",
        action="store_true",
        help="fail tests in which torch warns of what tapescope calls (FutureWarning, DeprecationWarning)",
    )
    parser.addoption("--update-snapshots", action="store_true", help="write tests/snapshots anew (tests/says.py)")


def pytest_configure(config: pytest.Config) -> None:
    """Lets tests press Ctrl-C, and take their time.

    What a shell starts in the background ignores that signal, and so do its children.
    """
    if config.getoption("second_device"):
        second_device.load()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Without a deadline, as a busy machine is not a failure. `make test` draws the same examples each time, so more of
    # them find nothing new from one run to the next; `make full` passes --hypothesis-profile=random.
    hypothesis.settings.register_profile("fixed", deadline=None, derandomize=True, max_examples=100)
    hypothesis.settings.register_profile("random", deadline=None, max_examples=300)
    hypothesis.settings.load_profile("fixed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path)  # all workers must agree on the order
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))
        if {"accelerator", "accelerators"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("accelerator")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if config.getoption("second_device"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash.get(STATUS, 1))  # see tests/second_device


@pytest.fixture
def accelerators(request: pytest.FixtureRequest) -> tuple[torch.device, torch.device]:
    """Return two devices with separate ready queues: two CUDA devices if there are, else those of the second device."""
    if torch.cuda.device_count() > 1:
        return torch.device("cuda:0"), torch.device("cuda:1")
    if not request.config.getoption("second_device"):
        pytest.skip("runs on the second device: tests/second_device/test_alone.py")
    return torch.device(second_device.NAME, 0), torch.device(second_device.NAME, 1)


@pytest.fixture
def accelerator(request: pytest.FixtureRequest) -> torch.device:
    """A device that is not the CPU: CUDA's where there is one, and the second device."""
    if request.config.getoption("second_device"):
        return torch.device(second_device.NAME, 0)
    if not torch.cuda.is_available():
        pytest.skip("runs on the second device: tests/second_device/test_alone.py")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="session")
def fresh_python() -> Iterator[WarmPython]:
    """Runs code in a process without other tests' traces: one that has imported torch, and most of tapescope."""
    with warm_python(
        "torch", "tapescope.engine.session.direct_session", "tapescope.engine.training.training_result"
    ) as python:
        yield python


@pytest.fixture(scope="session")
def page_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of widgets/js with its packages, so that building it changes nothing here.

    `distribution.py` runs the files that use it in one process: one `npm ci` is enough.
    """
    if shutil.which("npm") is None and os.environ.get("CI") != "true":
        pytest.skip("needs npm")
    copy = tmp_path_factory.mktemp("widgets") / "js"
    shutil.copytree(WIDGETS / "js", copy, ignore=shutil.ignore_patterns("node_modules", "out"))
    shared = copy.parents[1] / "inspector" / "drawing"
    shared.mkdir(parents=True)
    for path in (WIDGETS.parent / "inspector" / "drawing").glob("*.json"):
        shutil.copy(path, shared)
    packages = WIDGETS / "js" / "node_modules"
    if packages.exists():
        (copy / "node_modules").symlink_to(packages)
    else:
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=copy, check=True)
    return copy


@pytest.fixture(scope="session")
def texts_in() -> Callable[[str], list[Read]]:
    """The texts of a picture, each with its contrast."""
    return texts_of
