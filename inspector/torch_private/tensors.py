"""Tensors and the bytes below them, and scalars read from a device without waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import Node
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map_only

from ..validation import a_kind
from .thread_state import functorch_is_active

SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

Kind = TypeVar("Kind")


def base_of(tensor: Tensor) -> Tensor | None:
    """Return the base of a view, or None."""
    return tensor._base


def equal_elements(one: Tensor, other: Tensor) -> Tensor:
    """Compare two tensors of the same shape elementwise; NaN equals NaN."""
    return (one == other) | ((one != one) & (other != other))


def version_of(tensor: Tensor) -> int:
    """Return the tensor's version; -1 for an inference tensor, which has no version counter."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


class StorageBytes(NamedTuple):
    """The storage of a tensor. `address` is unique while the storage is alive."""

    address: int
    nbytes: int


def local_of(tensor: Tensor) -> Tensor:
    """Return the tensor with the bytes: the inner one of a wrapper (this rank's part of a DTensor), or itself."""
    while computes_itself(tensor) and type(tensor).__module__.startswith("torch.") and not is_fake(tensor):
        names = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ()
        parts = [part for part in (getattr(tensor, name) for name in names) if isinstance(part, Tensor)]
        if len(parts) != 1:
            break
        tensor = parts[0]
    return tensor


def storage_of(tensor: Tensor) -> StorageBytes | None:
    """Return the storage of a tensor, or of this rank's part of a DTensor.

    Return None for tensors without their own storage (sparse, nested, not yet initialised).
    """
    try:
        storage = local_of(tensor).untyped_storage()
        return StorageBytes(storage._cdata, storage.nbytes())
    except (NotImplementedError, RuntimeError, ValueError):
        return None


def share_storage(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same storage."""
    first, second = storage_of(one), storage_of(other)
    return first is not None and second is not None and first.address == second.address


def address_below(strided: Tensor) -> int | None:
    """Return the address of its storage without asking for the storage (see `look`); None if it has none of its own."""
    try:
        address = 0 if is_fake(strided) else strided.data_ptr()  # data_ptr() of a fake tensor is 0 and warns
    except (NotImplementedError, RuntimeError):
        return None
    return address - int(strided.storage_offset()) * strided.element_size() if address else 0


def set_version(tensor: Tensor, version: int) -> None:
    """Set the tensor's version, after its bytes were restored. Not for inference tensors."""
    if not tensor.is_inference():
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def is_leaf(tensor: Tensor) -> bool:
    """Return whether the tensor is a leaf, not made by an operation with a node."""
    try:
        return tensor.is_leaf
    except RuntimeError:  # one of several views (`unbind`) whose base was modified in place; torch refuses its grad_fn
        return False


def node_of(tensor: Tensor) -> Node | None:
    """Return a tensor's node; None if reading `grad_fn` raises.

    torch raises for one of several views (of chunk, split, unbind) whose base was modified in place.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def parts_of(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors with the bytes: itself, or a subclass's inner tensors (DTensor); none for a fake tensor."""
    if not computes_itself(tensor):
        yield tensor
    elif hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            if isinstance(part := getattr(tensor, name), Tensor):  # a DTensor's mesh is among them
                yield from parts_of(part)


def strided_parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield `parts_of`, with the indices and values of sparse tensors, and without tensors that hide their bytes."""
    for part in parts_of(tensor):
        if part.layout in SPARSE:
            yield from stored_parts(part)
        elif bytes_below(part) is not None:
            yield part


def content_of(tensor: Tensor) -> Callable[[], None]:
    """Copy the contents of a tensor without a storage (sparse, MKL-DNN). Return a function that restores them.

    Call both `unobserved`.
    """
    version = version_of(tensor)
    is_sparse = tensor.layout in SPARSE
    # Writing into a sparse tensor may give it other indices and values; an alias keeps those that it had.
    before = tensor.detach() if is_sparse else tensor.detach().clone()
    copies = [(part, part.clone()) for part in stored_parts(before)] if is_sparse else []

    def put_back() -> None:
        for part, copy in copies:
            part.copy_(copy)
        if is_sparse:
            tensor.data = before.detach()
        else:  # other tensors may be on the same bytes
            tensor.copy_(before)
        set_version(tensor, version)

    return put_back


def bytes_below(tensor: Tensor) -> torch.UntypedStorage | None:
    """Return the tensor's storage object, or None if it has none of its own."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):
        return None


_NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64, torch.int64: torch.int8}


def is_number(tensor: Tensor) -> bool:
    """Return whether the tensor is a wrapped Python number (`x * 2`), detected by type promotion.

    `saved_tensors_hooks` never see such a tensor (saved_variable.cpp, is_wrapped_number). A wrapped bool
    cannot be detected. Call this `unobserved`.
    """
    narrower = _NARROWER.get(tensor.dtype)
    if narrower is None or tensor.is_nested or tensor.dim():
        return False
    return torch.result_type(tensor, torch.ones((), dtype=narrower, device="cpu")) is narrower


def beneath_transforms(tensor: Tensor) -> Tensor:
    """Return the tensor inside functorch's wrappers (vmap, grad), which has the data and the graph; else itself."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def nodes_beneath_transforms(tensor: Tensor) -> Iterator[Node]:
    """Yield the nodes that made the tensors beneath functorch's wrappers, from the innermost transform outwards.

    Each level that differentiates has its own graph. A level of `vmap` has none: its wrapper's `grad_fn` is None.
    """
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
        if (node := tensor.grad_fn) is not None:
            yield node


def beneath_all_transforms(value: Kind) -> Kind:
    """Apply `beneath_transforms` to all tensors in the value. Outside of transforms, return the value itself."""
    if not functorch_is_active():
        return value
    found: Kind = tree_map_only(Tensor, beneath_transforms, value)
    return found


def is_abstract(tensor: Tensor) -> bool:
    """Return whether the tensor has no readable elements.

    It is a wrapper inside a transform of torch.func, or zeros without memory (in forward mode).
    """
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor._is_zerotensor())


def stored_values(tensor: Tensor) -> Tensor:
    """Return the stored elements of a sparse tensor. COO tensors are not coalesced, which would synchronise."""
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


class Elements(NamedTuple):
    """The elements of a tensor.

    Attributes:
        parts: strided tensors that hold them; none is of a subclass with its own operations.
        unread: the reason why they cannot be read, in which case `parts` is empty; "" if `parts` has all of them.
    """

    parts: tuple[Tensor, ...] = ()
    unread: str = ""


def elements_of(tensor: Tensor) -> Elements:
    """Return the tensors that hold a tensor's elements. Call this `unobserved`.

    These are the values of a sparse or nested tensor, this rank's part of a DTensor, and the inner tensors of other
    wrapper subclasses (`__tensor_flatten__`). Only quantized and MKL-DNN tensors are copied.
    """
    if tensor.is_meta or is_fake(tensor):
        return Elements(unread="a tensor on the meta device has no values" if tensor.is_meta else _unread(tensor))
    if computes_itself(tensor):
        return _inner_elements(tensor)
    if is_abstract(tensor):
        return Elements(unread="a tensor inside a transform of torch.func has no values of its own")
    if tensor.is_nested:
        return Elements((tensor.values(),) if tensor.is_contiguous() else tuple(tensor.unbind()))
    if tensor.is_quantized:
        return Elements((tensor.dequantize(),))
    if tensor.layout is torch.strided:
        return Elements((tensor,))
    if tensor.layout in SPARSE:
        return Elements((stored_values(tensor),))
    if tensor.is_mkldnn:
        return Elements((tensor.to_dense(),))
    return Elements(unread=f"layout {tensor.layout}")


def _inner_elements(tensor: Tensor) -> Elements:
    """Return the elements of a tensor whose subclass has its own operations."""
    if not is_traceable_wrapper_subclass(tensor):
        if bytes_are_elsewhere(tensor):
            return Elements(unread=_unread(tensor))
        with torch._C._DisableTorchDispatch():  # a plain tensor on the same bytes, without calling the subclass
            return Elements((tensor.detach(),))
    if tensor.is_nested:
        values = tensor.unbind() if tensor.lengths() is not None else (tensor.values(),)
        return _joined(values)
    inner = [part for name in tensor.__tensor_flatten__()[0] if isinstance(part := getattr(tensor, name), Tensor)]
    if len(inner) == 1 and hasattr(tensor, "trigger_wait"):  # AsyncCollectiveTensor: a collective is still writing it
        return elements_of(tensor.trigger_wait())
    own = [part for part in inner if part.dtype is tensor.dtype]
    # Integers beside them are indices or masks. Other floats are scales: the elements are stored in another form.
    is_plain = own == inner if len(inner) == 1 else any(part.shape == tensor.shape for part in own)
    if not is_plain or any(part.is_floating_point() for part in inner if part.dtype is not tensor.dtype):
        return Elements(unread=_unread(tensor))
    return _joined(own)


def _joined(tensors: Iterable[Tensor]) -> Elements:
    found = [elements_of(each) for each in tensors]
    unread = next((each.unread for each in found if each.unread), "")
    return Elements(unread=unread) if unread else Elements(tuple(part for each in found for part in each.parts))


def _unread(tensor: Tensor) -> str:
    return f"{a_kind(tensor)} computes in its own way"


def bytes_are_elsewhere(tensor: Tensor) -> bool:
    """Return whether a subclass wraps other tensors, and so has no bytes of its own."""
    try:
        return tensor.numel() > 0 and not tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return True


def computable(values: Tensor) -> Tensor:
    """Return the values in a dtype that all kernels support; few support float8 or complex32."""
    dtype = values.dtype
    if dtype is torch.complex32:
        return values.to(torch.complex64)
    return values.to(torch.float32) if dtype.is_floating_point and dtype.itemsize == 1 else values


def all_elements(tensor: Tensor) -> Tensor | None:
    """Return a tensor's elements as one tensor, including the zeros of a sparse one; None if they cannot be read."""
    plain = tensor.detach()
    if not computes_itself(plain) and not plain.is_nested and not plain.is_quantized:
        plain = dense(plain)
    parts = [computable(part) for part in elements_of(plain).parts]
    return None if not parts else parts[0] if len(parts) == 1 else torch.cat([part.flatten() for part in parts])


def dense(tensor: Tensor) -> Tensor:
    """Return the tensor in strided layout, including the zeros of a sparse one."""
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def stored_bytes(tensor: Tensor) -> int:
    """Return the size in bytes of a sparse tensor's stored elements and indices."""
    return sum(each.nbytes for each in stored_parts(tensor))


def stored_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors inside a sparse tensor: its indices and its values."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def computes_itself(tensor: Tensor) -> bool:
    """Return whether the tensor's subclass has its own operations (`__torch_dispatch__`: DTensor, FakeTensor)."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


# From torch 2.14 on some fake tensors are implemented in C++, without their own class.
is_fake: Callable[[object], bool] = getattr(
    fake_tensor, "is_fake_tensor", lambda tensor: isinstance(tensor, FakeTensor)
)
"""Return whether the value is a fake tensor (FakeTensorMode), which has a device and a layout, but no data."""


def is_fake_of(tensor: object, mode: FakeTensorMode) -> bool:
    """Return whether the value is a fake tensor of this mode."""
    return is_fake(tensor) and getattr(tensor, "fake_mode", None) is mode


def is_wrapped(tensor: Tensor) -> bool:
    """Return whether the storage belongs to inner tensors, as in a DTensor. A fake tensor's storage has no bytes."""
    return computes_itself(tensor) and not is_fake(tensor)


def without_bytes(tensor: Tensor) -> str:
    """Return why the tensor has no memory, as text; "" if it has."""
    if tensor.device.type == "meta":
        return "on the meta device"
    if is_fake(tensor):
        return "a fake tensor (FakeTensorMode)"
    if computes_itself(tensor) and hasattr(tensor, "__tensor_flatten__"):
        parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        return next(filter(None, (without_bytes(part) for part in parts if isinstance(part, Tensor))), "")
    return ""


def identity_of(tensor: Tensor) -> int:
    """Return the address of the C++ tensor (TensorImpl), shared by all its Python objects."""
    identity: int = tensor._cdata
    return identity


def is_view(tensor: Tensor) -> bool:
    """Return whether the tensor is a view for autograd. A view refers to its base, and so to its storage twice."""
    return tensor._is_view()


class FollowedStorage:
    """A weak reference to a tensor's storage. While it exists, the address is not reused.

    Attributes:
        address: the address of the storage.
    """

    __slots__ = ("_reference", "address")

    def __init__(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.address: int = storage._cdata
        self._reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    @property
    def alive(self) -> bool:
        return not self._reference.expired()  # type: ignore[no-untyped-call]

    def storage(self) -> torch.UntypedStorage | None:
        """Return the storage, or None if it was freed."""
        found: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(self.address)
        return found


# LIFT returns a tensor that torch.tensor has filled from Python or NumPy data.
DETACH, ALIAS, LIFT = (getattr(torch.ops.aten, name).default for name in ("detach", "alias", "lift_fresh"))


def detached(tensor: Tensor) -> Tensor:
    """Return a tensor with the same bytes and version counter, but without a graph.

    Inside an operation, where pack hooks and dispatch modes run, torch's own detach() returns a tensor with a version
    counter of its own.
    """
    excluded = _key_is_excluded(_IN_PLACE_OR_VIEW)
    if excluded:
        _exclude_key(_IN_PLACE_OR_VIEW, False)
    try:
        if computes_itself(tensor) or not torch._C._len_torch_dispatch_stack():
            return tensor.detach()
        with torch._C._DisableTorchDispatch():  # hide it from the modes of this thread
            return tensor.detach()
    finally:
        if excluded:
            _exclude_key(_IN_PLACE_OR_VIEW, True)


_IN_PLACE_OR_VIEW = torch._C.DispatchKey.ADInplaceOrView
_key_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_exclude_key = torch._C._dispatch_tls_set_dispatch_key_excluded


def on_storage(storage: torch.UntypedStorage, view: View) -> Tensor:
    """Return a tensor on this storage."""
    dtype, offset, shape, strides, conjugated, negated = view
    tensor = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, strides)
    return lazily(tensor, conjugated, negated)


def lazily(tensor: Tensor, conjugated: bool, negated: bool) -> Tensor:
    """Return a view of a tensor that is conjugated or negated lazily, when it is read."""
    if conjugated:
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if negated else tensor


def has_view(tensor: Tensor) -> bool:
    """Return whether a storage and a `View` describe the tensor: not sparse, nested, quantized or MKL-DNN ones."""
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


class View(NamedTuple):
    """The layout of a tensor on its storage; offset and strides are in elements.

    For a tensor that cannot be described like this (see `has_view`) it covers all bytes of the storage.
    """

    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    conjugated: bool
    negated: bool

    @staticmethod
    def of(tensor: Tensor) -> View:
        if not has_view(tensor):
            return View(torch.uint8, 0, (tensor.untyped_storage().nbytes(),), (1,), False, False)
        return View(
            tensor.dtype,
            tensor.storage_offset(),  # type: ignore[arg-type]
            tensor.shape,
            tensor.stride(),
            tensor.is_conj(),
            tensor.is_neg(),
        )


class LateTensor:
    """An asynchronous copy of a tensor to the CPU, started now and read when it has finished."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.Event | None = None
        if tensor.device.type == "cpu":
            self._copy = tensor
            return
        pinned = tensor.device.type == "cuda"
        self._copy = torch.empty_like(tensor, device="cpu", pin_memory=pinned)
        self._copy.copy_(tensor, non_blocking=True)
        self._event = torch.Event(tensor.device)
        self._event.record()

    @property
    def is_pending(self) -> bool:
        """Return whether the values are on another device, which may still be computing them."""
        return self._event is not None

    def is_ready(self) -> bool:
        return self._event is None or self._event.query()

    def read(self) -> Tensor:
        """Return the values on the CPU, waiting for them if needed."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy
