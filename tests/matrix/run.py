"""Runs cells, in this process or in a separate one, and judges how each ends."""

from __future__ import annotations

import dis
import faulthandler
import json
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from cell import Cell, DoesNotApplyError, WrongError
from program import KINDS
from verbs import VERBS

import tapescope as ts

HUNG_S = 300
"""After this time a cell counts as hung; the longest takes some 20 s on a quiet machine."""

_OURS = Path(ts.__file__).parent
_PACKAGES = tuple(_OURS / name for name in ("inspector", "engine", "widgets"))
_MOST_TEXT = 2_000  # characters


class Result(NamedTuple):
    """The end of one cell.

    Attributes:
        outcome: "right", "refused", "crash", "wrong"; "none": the verb does not apply; "begun": not ended yet.
        text: what was refused or is wrong.
    """

    kind: str
    verb: str
    outcome: str
    text: str = ""
    seconds: float = 0.0


def run_cells(cells: Sequence[tuple[str, str]], is_prefilled: bool, hung_s: float) -> Iterator[Result]:
    """Run cells in this process, each announced by a "begun"."""
    torch.set_num_threads(1)
    of_kind: dict[str, Cell | Result] = {}
    for kind, verb in cells:
        yield Result(kind, verb, "begun")
        if kind not in of_kind:
            of_kind.clear()
            of_kind[kind] = _built(kind, is_prefilled)
        cell = of_kind[kind]
        if isinstance(cell, Result):
            yield cell._replace(verb=verb)
            continue
        started = time.perf_counter()
        faulthandler.dump_traceback_later(hung_s, exit=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = ended(kind, verb, cell)
        faulthandler.cancel_dump_traceback_later()
        yield result._replace(seconds=round(time.perf_counter() - started, 2))


def _built(kind: str, is_prefilled: bool) -> Cell | Result:
    cell = Cell(KINDS[kind], is_prefilled)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert cell.oracle
    except Exception as error:
        return Result(kind, "", "crash", f"plain PyTorch itself raises {type(error).__name__}: {error}")
    return cell


def ended(kind: str, verb: str, cell: Cell) -> Result:
    """Run one cell and judge how it ends."""
    try:
        VERBS[verb](cell)
    except DoesNotApplyError:
        return Result(kind, verb, "none")
    except WrongError as error:
        return Result(kind, verb, "wrong", str(error)[:_MOST_TEXT])
    except Exception as error:
        if is_refusal(error):
            return Result(kind, verb, "refused", f"{type(error).__name__}: {error}"[:_MOST_TEXT])
        places = [
            f"{Path(frame.filename).relative_to(_OURS)}:{frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)
            if _is_ours(frame.filename)
        ]
        where = " < ".join(reversed(places[-3:]))
        return Result(kind, verb, "crash", f"{type(error).__name__}: {error} @ {where}"[:_MOST_TEXT])
    return Result(kind, verb, "right")


def _is_ours(file: str) -> bool:
    return any(Path(file).is_relative_to(package) for package in _PACKAGES)


def is_refusal(error: BaseException) -> bool:
    """Return whether the error was raised by a `raise` of tapescope's own, not inside torch or Python."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not _is_ours(trace.tb_frame.f_code.co_filename):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def in_process(kind: str, verbs: Sequence[str], is_prefilled: bool) -> list[Result]:
    """Run the cells of a kind in a process of their own, in another one after each that ends it."""
    left, results = list(verbs), []
    while left:
        command = [sys.executable, str(Path(__file__).parent), kind, "--child", "--verbs", ",".join(left)]
        ran = subprocess.run(
            [*command, "--prefilled"] if is_prefilled else command, capture_output=True, text=True, check=False
        )
        found = [Result(**json.loads(line[2:])) for line in ran.stdout.splitlines() if line.startswith("@@")]
        done = [each for each in found if each.outcome != "begun"]
        begun = found[-1] if found and found[-1].outcome == "begun" else None
        if begun is not None:
            done.append(begun._replace(outcome="crash", text=f"the process ended: {ran.stderr[-_MOST_TEXT:]}"))
        if not found:
            done = [Result(kind, each, "crash", ran.stderr[-_MOST_TEXT:]) for each in left]
        results += done
        left = [each for each in left if each not in {result.verb for result in done}]
    return results
