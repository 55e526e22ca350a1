"""A session that an error has ended holds nothing: memory is back before the garbage collector runs."""

from __future__ import annotations

import gc
import time
from weakref import ref

import pytest
import torch
from torch import Tensor

import tapescope as ts
from tapescope.inspector.garbage_collector import collector_paused


def fail(gradient: Tensor) -> None:
    raise ValueError("boom")


def kept_after_an_error(device: torch.device | str, **asked: object) -> bool:
    """Return whether the saved tensors of a backward are alive after an error in it."""
    x = torch.randn(8, 8, device=device, requires_grad=True)
    y = x.exp()
    saved = ref(y.untyped_storage())
    z = y * 2
    z.register_hook(fail)
    session = ts.debug(z.cpu().sum(), **asked)  # type: ignore[arg-type]
    del y, z
    with pytest.raises(ValueError, match="boom") as caught:
        session.run()
    del caught, session
    until = time.monotonic() + 60  # a device's thread frees its backward soon after the error
    while saved() is not None and time.monotonic() < until:
        time.sleep(0.01)
    return saved() is not None


@pytest.mark.parametrize("engine", ["direct", "native"])
def test_a_session_that_an_error_has_ended_lets_the_graph_go(engine: str) -> None:
    gc.collect()
    with collector_paused():
        assert not kept_after_an_error("cpu", engine=engine)


def test_so_does_one_with_a_queue_for_each_device(accelerator: torch.device) -> None:
    gc.collect()
    with collector_paused():
        assert not kept_after_an_error(accelerator, engine="native", queues="per device")
