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


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


grad_layout_is_enforced: Callable[[], bool] = getattr(torch._C, "_is_grad_layout_enforcement_enabled", lambda: True)
"""Whether an AccumulateGrad copies a gradient whose strides are not its leaf's, instead of keeping it as .grad. Torch
2.13 and later can turn this off (`torch.autograd.enforce_grad_layout_policy`)."""

enforce_grad_layout: Callable[[bool], object] = getattr(
    torch._C, "_set_grad_layout_enforcement_enabled", lambda enforced: None
)


def _attribute(module: Any, name: str) -> Flag:
    return lambda: getattr(module, name), lambda value: setattr(module, name, value)


FLAGS: list[Flag] = [
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (grad_layout_is_enforced, enforce_grad_layout),
    (_anomaly, lambda value: torch.set_anomaly_enabled(*value)),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (_deterministic, _set_deterministic),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    *(_attribute(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
    *(_attribute(torch.backends.mkldnn, name) for name in ("enabled", "deterministic")),
]
"""The default device is none of them, but a mode. Filters of warnings stay: modules that are imported as a program runs
add their own."""


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


def functorch_is_active() -> bool:
    """Return whether a transform of torch.func is active, in which a backward is not allowed."""
    return bool(torch._C._are_functorch_transforms_active())


without_torch_function: Callable[[], AbstractContextManager[Any]] = torch._C.DisableTorchFunction
"""A context in which `__torch_function__` of tensor subclasses and function modes is not called."""


function_mode_is_on: Callable[[], bool] = torch._C._is_torch_function_mode_enabled
"""Whether a TorchFunctionMode watches this thread: then even reading a tensor's shape calls it."""

function_modes_open: Callable[[], int] = torch._C._len_torch_function_stack
"""The number of function modes on this thread's stack. A mode is not on it while it handles a call."""

grad_mode_switch: Callable[[bool], None] = torch._C._set_grad_enabled
"""What torch.no_grad() and its like call as they are entered and left, by which a TorchFunctionMode sees them."""


def in_function_forward() -> bool:
    """Return whether a custom Function's forward is running, where torch disables forward-mode AD."""
    return not torch._C._is_fwd_grad_enabled() and not torch.is_inference_mode_enabled()


_ignore_saved_hooks: Callable[[bool], bool] = torch._C._autograd._saved_tensors_hooks_set_tracing
"""Sets whether `saved_tensors_hooks` that are open are ignored, and returns whether they were. torch's compiler ignores
them while it traces. The hooks stay where they are, so that no error can leave them out of place."""


_set_tracing_state: Callable[[Any], None] = torch._C._set_tracing_state  # type: ignore[attr-defined]


class unobserved:
    """A context for tapescope's own code inside a user's call, with all of the user's modes off.

    Off are grad mode and forward-mode AD, inference mode, autocast, function modes (the default device among them),
    `__torch_function__` of tensor subclasses, dispatch modes, `saved_tensors_hooks`, `torch.jit.trace`, and the
    transforms of torch.func. Code that turns grad mode on inside saves tensors as if no hooks were open. Settings of
    the process stay: the default dtype, deterministic algorithms. Tensors that a transform wraps can't be computed
    with in it; `beneath_transforms` gives what they wrap.

    It takes a microsecond if none of the costlier modes is on.
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
                self._modes = ExitStack()
                _leave_modes(self._modes)
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


def _leave_modes(stack: ExitStack) -> None:
    """Switch off the modes that are seldom on; the stack restores them."""
    if torch._C._are_functorch_transforms_active():
        stack.enter_context(temporarily_clear_interpreter_stack())
    if torch._C._len_torch_dispatch_stack():
        stack.enter_context(_disable_current_modes())
    if (traced := torch._C._get_tracing_state()) is not None:
        _set_tracing_state(None)
        stack.callback(_set_tracing_state, traced)
    if torch._C._is_any_autocast_enabled():
        stack.enter_context(torch._C._DisableAutocast())
    if torch.is_inference_mode_enabled():
        stack.enter_context(torch._C._InferenceMode(False))


autocast_is_on: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Whether autocast is on for any device."""

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


class ThreadState:
    """torch's state of the thread that makes it, as far as Python can give it to another one.

    That is what the engine hands on to a backward's hooks and tasks: grad, inference and forward mode, autocast,
    `saved_tensors_hooks`, function and dispatch modes (default device among them), whether devices have threads of
    their own, whether gradients are laid out as their leaves, and the accelerators' current device and streams.

    Known limitations: the other thread does not call the hooks of `torch.autograd.graph.node_creation_hook` (torch
    2.14), which Python can neither list nor detect.

    Raises:
        NotImplementedError: A part of the state cannot be transferred to another thread.
    """

    def __init__(self) -> None:
        if torch._C._autograd._profiler_enabled():
            raise NotImplementedError("a profiler of this thread, which would not see the other one")
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
        """Apply the state to this thread, which must be new, without a state of its own."""
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


# What `with` does for a mode and for hooks, in less time: between large kernels each line of Python takes microseconds.
open_mode: Callable[[TorchDispatchMode], None] = torch._C._push_on_torch_dispatch_stack
close_mode: Callable[[None], object] = torch._C._pop_torch_dispatch_stack
open_hooks: Callable[[Callable[..., Any], Callable[..., Any]], None] = (
    torch._C._autograd._push_saved_tensors_default_hooks
)


close_hooks: Callable[[], None] = torch._C._autograd._pop_saved_tensors_default_hooks
hooks_are_enabled: Callable[[], bool] = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]


def why_hooks_are_disabled() -> str | None:
    """Return the message that `disable_saved_tensors_hooks` has for new hooks; None if it is not open."""
    return torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()


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
