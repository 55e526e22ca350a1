"""The verbs on one third-party model, and on several in as many processes."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import io
import logging
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from judge import WrongError, refusal
from loop_verbs import VERBS as LOOP_VERBS
from loops import Loop
from results import Cell, Row
from verbs import VERBS

_AT_ONCE = 6  # models of one library in one process: its import takes seconds


@dataclass(frozen=True)
class Library:
    """A library of third-party models.

    Attributes:
        module: of this folder, with a table of them.
        packages: that it imports.
        table: of the module.
    """

    module: str
    packages: tuple[str, ...]
    table: str = "MODELS"

    @property
    def strangers(self) -> Mapping[str, Any]:
        """Return by name a function that builds each model, or a loop that trains it."""
        found: Mapping[str, Any] = getattr(importlib.import_module(self.module), self.table)
        return found


LIBRARIES = {
    "transformers": Library("of_transformers", ("transformers",)),
    "timm": Library("of_timm", ("timm",)),
    "diffusers": Library("of_diffusers", ("diffusers",)),
    "peft": Library("of_peft", ("peft", "transformers")),
    "torch_geometric": Library("of_torch_geometric", ("torch_geometric",)),
    "Trainer": Library("loops", ("transformers", "accelerate", "peft"), "TRAINER"),
    "Lightning": Library("loops", ("pytorch_lightning", "transformers"), "LIGHTNING"),
    "Accelerate": Library("loops", ("accelerate", "transformers", "peft"), "ACCELERATE"),
}


def names() -> list[str]:
    """Return the names of all models, such as "timm resnet". No library is imported."""
    return [f"{library} {name}" for library, where in LIBRARIES.items() for name in where.strangers]


def put_through(name: str) -> Row:
    """Run all verbs on a model."""
    library, _, model = name.partition(" ")
    where = LIBRARIES[library]
    started = time.monotonic()
    if absent := [each for each in where.packages if importlib.util.find_spec(each) is None]:
        outcome = "wrong" if os.environ.get("CI") == "true" else "skipped"
        cells = {"graph": Cell(outcome, f"{absent[0]} is not installed: `make models` does that")}
        return Row(name, cells, 0.0)
    with _quiet():
        entry = where.strangers[model]
        if isinstance(entry, Loop):
            cells = {verb: _cell(partial(run, entry)) for verb, run in LOOP_VERBS.items()}
            return Row(name, cells, time.monotonic() - started)
        build = entry if callable(entry) else entry.build
        try:
            build()
            _set_aside()
            stranger = build()
        except Exception as error:
            return Row(name, {"graph": _crash(error)}, time.monotonic() - started)
        cells = {verb: _cell(partial(run, stranger)) for verb, run in VERBS.items()}
    return Row(name, cells, time.monotonic() - started)


def _set_aside() -> None:
    """Freeze the half a million objects that a library has imported, so that searches for leaves and hooks skip
    them."""
    gc.collect()
    gc.freeze()
    gc.get_freeze_count = lambda: 0  # HookWatch reckons with hooks of what is frozen: of this there are none


def _cell(run: Callable[[], Cell]) -> Cell:
    try:
        return run()
    except WrongError as error:
        return Cell("wrong", str(error))
    except Exception as error:
        said = refusal(error)
        return _crash(error) if said is None else Cell("refused", said)


def _crash(error: Exception) -> Cell:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return Cell("wrong", f"{type(error).__name__}: {error} ({os.path.basename(place.filename)}:{place.lineno})")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Libraries tell much of random weights."""
    logging.disable(logging.CRITICAL)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def _several(names: Sequence[str]) -> list[Row]:
    torch.set_num_threads(1)  # a sum over several threads is not the same each time
    return [put_through(name) for name in names]


def put_all_through(names: Sequence[str], jobs: int) -> Iterator[Row]:
    """Run each library in separate processes, because the imports of one would affect another."""
    batches = [
        of_library[place : place + _AT_ONCE]
        for library in LIBRARIES
        if (of_library := [name for name in names if name.partition(" ")[0] == library])
        for place in range(0, len(of_library), _AT_ONCE)
    ]
    if len(batches) == 1:
        yield from _several(batches[0])
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(_several, batch) for batch in batches]):
            yield from done.result()
