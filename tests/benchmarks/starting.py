"""What a new process pays: `import tapehead` beyond torch, and the first deck, each in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from measure import Effort, Row

_IMPORT = """
import time, torch
start = time.perf_counter()
import tapehead
print(time.perf_counter() - start)
"""

_DECK = """
import time, torch, anywidget
from IPython.core.interactiveshell import InteractiveShell
import tapehead as th
from tapehead.widgets.deck.deck import Deck
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1))
loss = model(torch.randn(8, 16)).square().mean()
start = time.perf_counter()
deck = Deck(th.debug(loss, trace="full", history=True))
print(time.perf_counter() - start)
deck.close()
"""


def rows(effort: Effort) -> Iterator[Row]:
    times = min(effort.repetitions, 9)
    yield Row("import tapehead, beyond torch", "s", _fresh(_IMPORT, times), 0.2)
    yield Row("the first deck of a process, with its prediction", "s", _fresh(_DECK, times), 0.5)


def _fresh(script: str, times: int) -> tuple[float, ...]:
    """What the script prints, each time in a process of its own."""

    def once() -> float:
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
        return float(done.stdout)

    return tuple(once() for _ in range(times))
