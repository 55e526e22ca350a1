"""Modes, contexts and threads that are open around a verb."""

from __future__ import annotations

import asyncio as loops
import contextlib
import gc
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from program import Program, kind, mlp, simple, surrounded, within
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import tapescope as ts


def with_gradients(context: Callable[[], Any]) -> Program:
    """The verb is called under `context`, the forward records a graph all the same."""
    model, x = mlp(), torch.randn(3, 4)

    def loss() -> Any:
        with torch.inference_mode(False), torch.enable_grad():
            return model(x).square().mean()

    return Program(loss, model=model, call=within(context))


@kind
def under_inference_mode() -> Program:
    return with_gradients(torch.inference_mode)


@kind
def under_no_grad() -> Program:
    return with_gradients(torch.no_grad)


@kind
def under_policy() -> Program:
    return surrounded(lambda: ts.policy("bfs"), is_exact=False)


@kind
def under_multithreading_off() -> Program:
    return surrounded(lambda: torch.autograd.set_multithreading_enabled(False))


@kind
def under_anomaly_mode() -> Program:
    @contextlib.contextmanager
    def context() -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autograd.detect_anomaly(check_nan=True):
                yield

    return surrounded(context)


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


@kind
def under_dispatch_mode() -> Program:
    return surrounded(Counting)


class Passing(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@kind
def under_function_mode() -> Program:
    return surrounded(Passing)


@kind
def under_flop_counter() -> Program:
    return surrounded(lambda: FlopCounterMode(display=False))


@contextlib.contextmanager
def switched(switch: Callable[[Any], object], during: Any, after: Any) -> Iterator[None]:
    """Set a flag of the process while the block runs."""
    switch(during)
    try:
        yield
    finally:
        switch(after)


@kind
def under_device_meta() -> Program:
    return surrounded(lambda: torch.device("meta"))


@kind
def under_default_device_meta() -> Program:
    return surrounded(lambda: switched(torch.set_default_device, "meta", None))


@kind
def under_default_dtype_float64() -> Program:
    return surrounded(lambda: switched(torch.set_default_dtype, torch.float64, torch.float32))


@kind
def under_autocast() -> Program:
    return surrounded(lambda: torch.autocast("cpu", torch.bfloat16), is_rough=True)


@kind
def under_deterministic_algorithms() -> Program:
    return surrounded(lambda: switched(torch.use_deterministic_algorithms, True, False))


@kind
def under_profiler() -> Program:
    return surrounded(lambda: torch.profiler.profile(activities=[ProfilerActivity.CPU]))


@kind
def under_python_profiler() -> Program:
    @contextlib.contextmanager
    def context() -> Iterator[None]:
        def note(*_: Any) -> None: ...

        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)

    return surrounded(context)


@kind
def under_collector_off() -> Program:
    @contextlib.contextmanager
    def context() -> Iterator[None]:
        gc.disable()
        try:
            yield
        finally:
            gc.enable()

    return surrounded(context)


@kind
def under_warnings_as_errors() -> Program:
    @contextlib.contextmanager
    def context() -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            warnings.simplefilter("error", FutureWarning)
            yield

    return surrounded(context)


@kind
def inside_event_loop() -> Program:
    """As in Jupyter."""
    program = surrounded()

    def call(function: Callable[[], Any]) -> Any:
        async def main() -> Any:
            return function()

        return loops.run(main())

    program.call = call
    return program


@kind
def regions_without_grad() -> Program:
    model, x = mlp(), torch.randn(3, 4)

    def loss() -> Any:
        with torch.no_grad():
            target = model(x).mean()
        with torch.inference_mode():
            factor = x.sum() * 2
        return (model(x) - target).square().mean() * float(factor)

    return Program(loss, model=model)


@kind
def inference_tensor_as_input() -> Program:
    model = mlp()
    with torch.inference_mode():
        x = torch.randn(3, 4)
    return Program(lambda: model(x.clone()).square().mean(), model=model)


@kind
def autocast_in_the_forward() -> Program:
    model, x = mlp(), torch.randn(3, 4)

    def loss() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().mean()

    return Program(loss, model=model, is_rough=True)


def in_thread(function: Callable[[], Any]) -> Any:
    """Call `function` in a thread of its own, and raise here what it raises."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


@kind
def backward_in_thread() -> Program:
    model, x = mlp(), torch.randn(3, 4)
    return Program(lambda: model(x).square().mean(), model=model, call_backward=in_thread)


@kind
def all_in_thread() -> Program:
    return simple(mlp(nn.Dropout(0.4)), torch.randn(3, 4), call=in_thread)


@kind
def forward_in_thread() -> Program:
    model, x = mlp(), torch.randn(3, 4)
    return Program(lambda: in_thread(lambda: model(x).square().mean()), model=model)


@kind
def two_forward_threads() -> Program:
    model, x = mlp(), torch.randn(4, 4)

    def loss() -> Any:
        outputs: list[Any] = [None, None]
        barrier = threading.Barrier(2)

        def work(place: int) -> None:
            barrier.wait()
            outputs[place] = model(x[2 * place : 2 * place + 2])

        threads = [threading.Thread(target=work, args=(place,)) for place in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return torch.cat(outputs).square().mean()

    return Program(loss, model=model, is_exact=False)
