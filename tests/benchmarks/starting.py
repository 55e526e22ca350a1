"""The cost of a new process: `import tapescope` in addition to torch, and the first deck, each in separate processes.

Python has compiled all modules before, as pip does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from measure import Effort, Row

_IMPORT = """
import time, torch
start = time.perf_counter()
import tapescope
print(time.perf_counter() - start)
"""

_CELL = """
import time, torch, ipykernel.ipkernel
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1))
loss = model(torch.randn(8, 16)).square().mean()
start = time.perf_counter()
import tapescope as ts
from tapescope.widgets.deck.deck import Deck
deck = Deck(ts.debug(loss, trace="full", history=True))
print(time.perf_counter() - start)
deck.close()
"""

_DECK = """
import time, torch, anywidget
from IPython.core.interactiveshell import InteractiveShell
import tapescope as ts
from tapescope.widgets.deck.deck import Deck
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1))
loss = model(torch.randn(8, 16)).square().mean()
start = time.perf_counter()
deck = Deck(ts.debug(loss, trace="full", history=True))
print(time.perf_counter() - start)
deck.close()
"""


def rows(effort: Effort) -> Iterator[Row]:
    times = min(effort.repetitions, 9)
    yield Row("import tapescope, beyond torch", "s", _fresh(_IMPORT, times), 0.2)
    yield Row("the first deck of a process, with its prediction", "s", _fresh(_DECK, times), 0.5)
    yield Row("from `import tapescope` in a notebook to the first deck", "s", _fresh(_CELL, times), 0.5)


def _fresh(script: str, times: int) -> tuple[float, ...]:
    """Return the output of the script, run each time in a separate process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def once() -> float:
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        return float(done.stdout)

    once()
    return tuple(once() for _ in range(times))
