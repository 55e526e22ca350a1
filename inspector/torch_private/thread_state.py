"""The state of a thread: torch's flags and modes (torch_function, dispatch, grad, autocast, functorch)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack

Flag = tuple[Callable[[], Any], Callable[[Any], object]]
"""A function that reads a flag, and one that sets it."""


grad_layout_is_enforced: Callable[[], bool] = getattr(torch._C, "_is_grad_layout_enforcement_enabled", lambda: True)
"""Return whether an AccumulateGrad copies a gradient if its strides differ from its leaf's. Torch 2.13 and later can
turn this off (`torch.autograd.enforce_grad_layout_policy`); `.grad` then is the gradient itself."""

enforce_grad_layout: Callable[[bool], object] = getattr(
    torch._C, "_set_grad_layout_enforcement_enabled", lambda enforced: None
)


def _attribute(module: Any, name: str) -> Flag:
    return lambda: getattr(module, name), lambda value: setattr(module, name, value)


FLAGS: list[Flag] = [
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (grad_layout_is_enforced, enforce_grad_layout),
    (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda value: torch.set_anomaly_enabled(*value),
    ),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    *(_attribute(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
    *(_attribute(torch.backends.mkldnn, name) for name in ("enabled", "deterministic")),
]
"""The flags of the process and of the thread that tapescope restores after running user code.

The default device is not a flag but a mode. Warning filters are not restored, because modules add their own when the
program imports them."""


def leave_function_mode(mode: TorchFunctionMode) -> None:
    """Remove a mode from this thread's stack, wherever it is; do nothing if it is not there."""
    above: list[TorchFunctionMode] = []
    while any(each is mode for each in _get_current_function_mode_stack()):  # type: ignore[no-untyped-call]
        top = _pop_mode()  # type: ignore[no-untyped-call]
        if top is mode:
            break
        above.append(top)
    for each in reversed(above):
        _push_mode(each)  # type: ignore[no-untyped-call]


functorch_is_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""Return whether a transform of torch.func is active, in which a backward is not allowed."""

without_torch_function: Callable[[], AbstractContextManager[Any]] = torch._C.DisableTorchFunction
"""A context in which `__torch_function__` of tensor subclasses and function modes is not called."""


function_mode_is_on: Callable[[], bool] = torch._C._is_torch_function_mode_enabled
"""Return whether a TorchFunctionMode is active in this thread. Even reading a tensor's shape then calls it."""

function_modes_open: Callable[[], int] = torch._C._len_torch_function_stack
"""The number of function modes on this thread's stack. A mode is not on it while it handles a call."""

grad_mode_switch: Callable[[bool], None] = torch._C._set_grad_enabled
"""The function that torch.no_grad() and similar contexts call on entry and exit. A TorchFunctionMode sees this call."""


def in_function_forward() -> bool:
    """Return whether a custom Function's forward is running, where torch disables forward-mode AD."""
    return not torch._C._is_fwd_grad_enabled() and not torch.is_inference_mode_enabled()


_ignore_saved_hooks: Callable[[bool], bool] = torch._C._autograd._saved_tensors_hooks_set_tracing
"""Set whether open `saved_tensors_hooks` are ignored, and return whether they were, as torch's compiler does while it
traces. The hooks stay on their stack, so an error cannot leave them in the wrong place."""


_set_tracing_state: Callable[[Any], None] = torch._C._set_tracing_state  # type: ignore[attr-defined]


class unobserved:
    """A context for tapescope's own code inside a user's call, with all of the user's modes off.

    It disables grad mode and forward-mode AD, inference mode, autocast, function modes (including the default device),
    `__torch_function__` of tensor subclasses, dispatch modes, `saved_tensors_hooks`, `torch.jit.trace`, and the
    transforms of torch.func. Code that enables grad mode inside saves tensors as if no hooks were open. Settings of the
    process, such as the default dtype and deterministic algorithms, are unchanged. Operations on a tensor that a
    transform wraps fail inside; pass them the tensor from `beneath_transforms`.

    Entering and leaving takes a microsecond, unless one of the costlier modes is on.
    """

    __slots__ = ("_forward", "_function", "_grad", "_hooks", "_modes")

    def __enter__(self) -> None:
        self._function = torch._C.DisableTorchFunction()
        self._grad, self._forward = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
        self._modes: ExitStack | None = None
        self._hooks = False
        try:
            self._function.__enter__()
            self._hooks = _ignore_saved_hooks(True)
            if (
                torch._C._len_torch_dispatch_stack()
                or torch._C._are_functorch_transforms_active()
                or torch.is_inference_mode_enabled()
                or torch._C._is_any_autocast_enabled()
                or torch._C._get_tracing_state() is not None
            ):
                self._modes = modes = ExitStack()  # restores the modes that are seldom on
                if torch._C._are_functorch_transforms_active():
                    modes.enter_context(temporarily_clear_interpreter_stack())
                if torch._C._len_torch_dispatch_stack():
                    modes.enter_context(_disable_current_modes())
                if (traced := torch._C._get_tracing_state()) is not None:
                    _set_tracing_state(None)
                    modes.callback(_set_tracing_state, traced)
                if torch._C._is_any_autocast_enabled():
                    modes.enter_context(torch._C._DisableAutocast())
                if torch.is_inference_mode_enabled():
                    modes.enter_context(torch._C._InferenceMode(False))
            torch._C._set_grad_enabled(False)
            torch._C._set_fwd_grad_enabled(False)
        except BaseException:  # Ctrl-C
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._leave()
        except BaseException:  # Ctrl-C, at any line; leaving twice is harmless
            self._leave()
            raise

    def _leave(self) -> None:
        if self._modes is not None:
            self._modes.close()
        torch._C._set_fwd_grad_enabled(self._forward)
        torch._C._set_grad_enabled(self._grad)
        _ignore_saved_hooks(self._hooks)
        self._function.__exit__(None, None, None)


autocast_is_on: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Return whether autocast is on for any device."""

_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla")


def autocast_devices() -> list[str]:
    """Return the device types that support autocast."""
    known = dict.fromkeys([*_AUTOCAST_DEVICES, torch._C._get_privateuse1_backend_name()])
    return [device for device in known if torch.amp.is_autocast_available(device)]


def autocast_casts() -> dict[str, torch.dtype]:
    """Return by device type the dtypes to which autocast currently casts weights with caching."""
    if not autocast_is_on() or not torch.is_autocast_cache_enabled():
        return {}
    types = (device_type for device_type in autocast_devices() if torch.is_autocast_enabled(device_type))
    return {device_type: torch.get_autocast_dtype(device_type) for device_type in types}


class DispatchMode(TorchDispatchMode):
    """A dispatch mode of tapescope. torch's compiler must not wrap it, because that would load the compiler."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class ThreadState:
    """torch's state of the current thread, to apply it to another thread.

    It consists of the state that the engine sets for a backward's hooks and tasks: grad, inference and forward mode,
    autocast, `saved_tensors_hooks`, function and dispatch modes (including the default device), whether devices have
    threads of their own, whether gradients get their leaves' layout, and the accelerators' current device and streams.

    Known limitations: the other thread does not call the hooks of `torch.autograd.graph.node_creation_hook` (torch
    2.14), which Python can neither list nor detect.

    Raises:
        NotImplementedError: A part of the state cannot be transferred to another thread.
    """

    def __init__(self) -> None:
        if torch._C._autograd._profiler_enabled():
            raise NotImplementedError("a profiler of this thread, which does not record other threads")
        self._function_modes = list(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]
        self._dispatch_modes = list(_get_current_dispatch_mode_stack())
        for mode in self._dispatch_modes:
            if getattr(mode, "_mode_key", None) is not None:
                raise NotImplementedError(f"{type(mode).__name__}, a mode of torch's own dispatch")
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._forward_mode = torch._C._is_fwd_grad_enabled()
        self._multithreading = torch._C._is_multithreading_enabled()
        self._view_replay = torch._C._is_view_replay_enabled()
        self._grad_layout = grad_layout_is_enforced()
        self._autocast = [
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in autocast_devices()
        ]
        self._autocast_cache = torch.is_autocast_cache_enabled()
        self._saved_hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        self._no_saved_hooks = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
        self._group = torch._C._get_graph_exec_group()
        self._streams: list[torch.Stream] = []
        self._device: int | None = None
        if torch.accelerator.is_available():
            self._device = torch.accelerator.current_device_index()
            self._streams = [torch.accelerator.current_stream(each) for each in range(torch.accelerator.device_count())]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Apply the state to this thread, which must be new, without its own state."""
        for stream in self._streams:
            torch.accelerator.set_stream(stream)
        if self._device is not None:
            torch.accelerator.set_device_index(self._device)
        for device, enabled, dtype in self._autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self._autocast_cache)
        torch._C._set_fwd_grad_enabled(self._forward_mode)
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self._inference))
            enforce_grad_layout(self._grad_layout)  # which inference mode sets
            stack.enter_context(torch.set_grad_enabled(self._grad))
            stack.enter_context(torch.autograd.set_multithreading_enabled(self._multithreading))
            stack.enter_context(torch.autograd.grad_mode._force_original_view_tracking(self._view_replay))
            if self._no_saved_hooks is not None:
                stack.enter_context(torch.autograd.graph.disable_saved_tensors_hooks(self._no_saved_hooks))
            elif self._saved_hooks is not None:
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*self._saved_hooks))
            if self._group is not None:
                torch._C._set_graph_exec_group(self._group)
                stack.callback(torch._C._set_graph_exec_group, None)
            for mode in self._function_modes:
                torch._C._push_on_torch_function_stack(mode)
                stack.callback(torch._C._pop_torch_function_stack)
            for mode in self._dispatch_modes:
                torch._C._push_on_torch_dispatch_stack(mode)
                stack.callback(torch._C._pop_torch_dispatch_stack, None)
            yield


def dispatch_mode_is_on() -> bool:
    """Return whether a TorchDispatchMode is active in this thread."""
    return bool(torch._C._len_torch_dispatch_stack())


# These do the same as a `with` block for a mode or for hooks, but faster: between large kernels, each line of Python
# takes microseconds.
open_mode: Callable[[TorchDispatchMode], None] = torch._C._push_on_torch_dispatch_stack
close_mode: Callable[[None], object] = torch._C._pop_torch_dispatch_stack
open_hooks: Callable[[Callable[..., Any], Callable[..., Any]], None] = (
    torch._C._autograd._push_saved_tensors_default_hooks
)


close_hooks: Callable[[], None] = torch._C._autograd._pop_saved_tensors_default_hooks
hooks_are_enabled: Callable[[], bool] = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]


why_hooks_are_disabled: Callable[[], str | None] = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message
"""Return the message of the open `disable_saved_tensors_hooks`; None if none is open."""


def disables_hooks(error: BaseException) -> bool:
    """Return whether `disable_saved_tensors_hooks` raised this error inside hooks, as in torch.func.grad."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_code is _DISABLE


_DISABLE = disable_saved_tensors_hooks.__wrapped__.__code__  # type: ignore[attr-defined]


def open_pack_hook() -> object:
    """Return the pack hook of the innermost open `saved_tensors_hooks`, or None."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return None if hooks is None else hooks[0]
