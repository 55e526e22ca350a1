from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from tapescope.engine.execution.find_hooks import HookWatch

from .page_side import Page, listening


@pytest.fixture
def page() -> Iterator[Page]:
    there_were = HookWatch([]).possible()  # other tests' graphs may still be alive
    with listening() as page:
        yield page
        if page.deck is not None:
            page.deck.close()
    page.deck = None
    gc.collect()  # errors hold frames, and these hooks
    assert there_were or not HookWatch([]).possible(), "hooks outlive the deck"
    assert not [each for each in threading.enumerate() if each.name.startswith("tapescope")]
