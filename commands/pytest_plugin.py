"""The pytest plugin: limits and baselines for the peak memory of tests marked with `peak_memory`.

pytest imports this module in every project in which tapescope is installed, so it imports torch only when a marked test
runs.
"""

from __future__ import annotations

import gc
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import TestCase

import pytest

if TYPE_CHECKING:
    from ..engine.training.peak_limit.simulated_function import SimulatedFunction

_FORMAT = "tapescope peaks"
_STORED = pytest.StashKey[dict[str, Any]]()
"""The peaks of the baseline by test, and then by "predicted" or "measured"."""

_MARKER = (
    'peak_memory(limit=None, device="cuda"): limit the peak memory of a test that trains a step. It is measured on an '
    "accelerator, and predicted on fake tensors without one."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("tapescope", "peak memory of training steps")
    group.addoption(
        "--tapescope-baseline",
        metavar="FILE",
        help="fail tests marked with peak_memory whose peak is above the stored one",
    )
    group.addoption("--tapescope-update", action="store_true", help="store the peaks in --tapescope-baseline instead")
    group.addoption("--tapescope-predict", action="store_true", help="predict the peak even if there is an accelerator")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and read the baseline.

    Raises:
        pytest.UsageError: the options contradict each other, or the baseline cannot be read.
    """
    config.addinivalue_line("markers", _MARKER)
    file, updates = config.getoption("--tapescope-baseline"), config.getoption("--tapescope-update")
    if updates and file is None:
        raise pytest.UsageError("--tapescope-update needs --tapescope-baseline FILE, the file to write")
    if updates and hasattr(config, "workerinput"):
        raise pytest.UsageError("--tapescope-update cannot run in several processes; leave out -n")
    if file is not None:
        config.stash[_STORED] = {} if updates and not Path(file).exists() else _read(Path(file))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise pytest.UsageError(
            f"cannot read --tapescope-baseline {path}: {error}; --tapescope-update writes it"
        ) from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT or not isinstance(content.get("tests"), dict):
        raise pytest.UsageError(f"{path} is not a file written by --tapescope-update")
    return dict(content["tests"])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the baseline. Peaks of tests that did not run stay."""
    config = session.config
    if config.getoption("--tapescope-update"):
        content = {"format": _FORMAT, "version": 1, "tests": config.stash[_STORED]}
        path = Path(config.getoption("--tapescope-baseline"))
        path.write_text(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail marked tests that run past this plugin, whose peak nobody would check."""
    if item.get_closest_marker("peak_memory") is None:
        return
    if isinstance(getattr(item, "cls", None), type) and issubclass(item.cls, TestCase):  # type: ignore[attr-defined]
        pytest.fail("peak_memory cannot check methods of a unittest.TestCase; write a test function", pytrace=False)
    if inspect.iscoroutinefunction(getattr(item, "obj", None)):
        pytest.fail("peak_memory cannot check a coroutine; write a test function without async", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test, and compare its peak with the limit and the baseline."""
    marker = pyfuncitem.get_closest_marker("peak_memory")
    if marker is None:
        return None
    limit, device = _arguments(*marker.args, **marker.kwargs)
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in names}

    def run() -> None:
        pyfuncitem.obj(**arguments)

    import torch

    if torch.accelerator.is_available() and not pyfuncitem.config.getoption("--tapescope-predict"):
        problem = _check_measured(pyfuncitem, _measured(run), limit)
    else:
        from ..engine.training.peak_limit.simulated_function import simulate_function

        simulated: SimulatedFunction | None = None
        try:
            simulated = simulate_function(run, "the test", device)
        except NotImplementedError as error:
            if error.__cause__ is None:  # raised by the test itself
                raise
            problem = str(error)
        if simulated is not None:
            problem = _check_predicted(pyfuncitem, simulated, limit)
    if problem is not None:
        pytest.fail(problem, pytrace=False)
    return True


def _arguments(limit: str | int | None = None, device: str = "cuda") -> tuple[int | None, str]:
    from ..engine.training.fits import named_device
    from ..engine.training.peak_limit.assert_peak import limit_of

    return None if limit is None else limit_of(limit), str(named_device(device))


def _measured(run: Callable[[], object]) -> int:
    """Return the peak of the accelerator's allocator, which includes tensors from before, such as those of fixtures."""
    import torch

    gc.collect()  # memory in reference cycles of earlier tests
    torch.accelerator.reset_peak_memory_stats()
    run()
    return torch.accelerator.max_memory_allocated()


def _check_measured(test: pytest.Function, peak: int, limit: int | None) -> str | None:
    from ..engine.training.peak_limit.assert_peak import over_baseline
    from ..inspector.text.sizes_and_counts import both_units

    before = _exchange(test, "measured", {"peak_bytes": peak})
    if limit is not None and peak > limit:
        return (
            f"the measured peak, {both_units(peak)}, exceeds {both_units(limit)}; --tapescope-predict lists the modules"
        )
    if before is not None and peak > before["peak_bytes"] * (1 + _SLACK):
        return over_baseline(before["peak_bytes"], peak, ["  --tapescope-predict names the modules that grew"])
    return None


_SLACK = 0.01
"""The relative growth of a measured peak that is not reported: kernels' workspaces depend on the libraries' choices.
Predicted peaks are the same in every run, so that each growth is reported."""


def _check_predicted(test: pytest.Function, simulated: SimulatedFunction, limit: int | None) -> str | None:
    from ..engine.training.peak_limit.assert_peak import growth, over_baseline, over_limit, stored_parts

    peak = simulated.peak_bytes
    before = _exchange(test, "predicted", {"peak_bytes": peak, "modules": stored_parts(simulated.parts)})
    if limit is not None and peak > limit:
        return over_limit(simulated, limit)
    if before is not None and peak > before["peak_bytes"]:
        return over_baseline(before["peak_bytes"], peak, growth(before["modules"], simulated))
    return None


def _exchange(test: pytest.Function, basis: str, found: dict[str, Any]) -> dict[str, Any] | None:
    """Return the stored peak of a test; with --tapescope-update, store the new one and return None."""
    test.user_properties.append((f"{basis}_peak_bytes", found["peak_bytes"]))
    stored = test.config.stash.get(_STORED, None)
    if stored is None:
        return None
    if test.config.getoption("--tapescope-update"):
        stored.setdefault(test.nodeid, {})[basis] = found
        return None
    before: dict[str, Any] | None = stored.get(test.nodeid, {}).get(basis)
    if before is None:
        pytest.fail(f"no {basis} peak is stored for this test; store it with --tapescope-update", pytrace=False)
    return before
