"""Side effects of a test that can make other tests fail, depending on their order: each test must leave none."""

from __future__ import annotations

import builtins
import gc
import os
import signal
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.modules import module as nn_module
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tapescope.engine.execution.find_hooks import HookWatch
from tapescope.inspector.torch_private.allocators import one_recording, profiler_is_on
from tapescope.inspector.torch_private.hooks import hooks_registered
from tapescope.inspector.torch_private.sequence_numbers import pins_open

HOOKS = "hooks of tensors or nodes, which others find: hold handles, and remove them"
_GRACE_S = 5.0


class Leftovers:
    """The state of the process and of this thread before a test, to be compared with that after it."""

    def __init__(self) -> None:
        self._modes = dict(_modes())
        self._threads = set(threading.enumerate())
        self._hooks = hooks_registered()

    def sentences(self, grace_s: float = _GRACE_S) -> list[str]:
        """Return the changes as sentences. Threads that are ending get this many seconds."""
        found: list[str] = []
        for thread in set(threading.enumerate()) - self._threads:
            if thread.name.startswith("tapescope"):  # servers and kernels that several tests share have others
                thread.join(grace_s)
                if thread.is_alive():
                    found.append(f"the thread {thread.name!r} still runs")
        found += [
            f"{name} was {self._modes[name]}, and is {now}" for name, now in _modes() if now != self._modes.get(name)
        ]
        if hooks_registered() != self._hooks and _any_hooks():
            found.append(HOOKS)
            gc.freeze()  # out of the sight of the tests that follow
        return found


def _any_hooks() -> bool:
    if not HookWatch(()).registered():
        return False
    gc.collect()
    return HookWatch(()).registered()


def _modes() -> Iterator[tuple[str, Any]]:
    yield "grad mode", torch.is_grad_enabled()
    yield "inference mode", torch.is_inference_mode_enabled()
    yield "anomaly mode", torch.is_anomaly_enabled()
    yield "autocast", torch.is_autocast_enabled("cpu")
    yield "the default dtype", torch.get_default_dtype()
    yield "the number of torch's threads", torch.get_num_threads()
    yield "deterministic algorithms", torch.are_deterministic_algorithms_enabled()
    yield "dispatch modes", len(_get_current_dispatch_mode_stack())
    yield "function modes", torch._C._len_torch_function_stack()
    yield "hooks on saved tensors", torch._C._autograd._top_saved_tensors_default_hooks(False)
    yield "pinned sequence numbers", pins_open()
    yield "torch.autograd.backward", torch.autograd.backward
    yield "Tensor.backward", torch.Tensor.backward
    yield "the call of the engine", torch.autograd.graph._engine_run_backward
    yield "torch.autograd's call of the engine", torch.autograd._engine_run_backward
    yield "the engine", Variable._execution_engine
    yield "the number of the backward", torch._C._current_graph_task_id
    yield "Module.__call__", torch.nn.Module.__call__
    for name, hooks in vars(nn_module).items():
        if name.startswith("_global_") and isinstance(hooks, dict):
            yield name, len(hooks)
    yield "a tracer", sys.gettrace()
    yield "Python's profiler", sys.getprofile()
    yield "torch's profiler", profiler_is_on()
    yield "the measurement under way", getattr(one_recording.holder, "verb", None)
    yield "tracemalloc", tracemalloc.is_tracing()
    yield "the collector", gc.isenabled()
    yield "Function.apply", torch.autograd.Function.apply
    yield "GradScaler.scale", torch.amp.GradScaler.scale
    yield "the step of gradient scalers", torch.amp.GradScaler._maybe_opt_step
    yield "the import of modules", builtins.__import__
    yield "multithreading of the engine", torch._C._is_multithreading_enabled()
    yield "the handler of Ctrl-C", signal.getsignal(signal.SIGINT)
    yield "the folder", os.getcwd()
