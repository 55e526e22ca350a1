"""Tensors and the bytes below them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef


def base_of(tensor: Tensor) -> Tensor | None:
    """The tensor of which this one is a view."""
    return tensor._base


def equal_elements(one: Tensor, other: Tensor) -> Tensor:
    """By element whether two tensors of one shape are equal there; NaN is equal to NaN."""
    return (one == other) | ((one != one) & (other != other))


def version_of(tensor: Tensor) -> int:
    """How often the tensor was modified in place; -1 for an inference tensor, of which nobody counts it."""
    return -1 if tensor.is_inference() else tensor._version


class StorageBytes(NamedTuple):
    """The bytes below a tensor; `address` is theirs alone as long as they live."""

    address: int
    nbytes: int


def local_of(tensor: Tensor) -> Tensor:
    """The tensor that has the bytes: of one of torch's that wraps another (a DTensor its own rank's part) that one."""
    while computes_itself(tensor) and type(tensor).__module__.startswith("torch.") and not is_fake(tensor):
        names = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ()
        parts = [part for part in (getattr(tensor, name) for name in names) if isinstance(part, Tensor)]
        if len(parts) != 1:
            break
        tensor = parts[0]
    return tensor


def storage_of(tensor: Tensor) -> StorageBytes | None:
    """The tensor's storage, of a DTensor that of its own rank's part; None for those that have none of their own
    (sparse, nested, not yet initialised)."""
    try:
        storage = local_of(tensor).untyped_storage()
        return StorageBytes(storage._cdata, storage.nbytes())
    except (NotImplementedError, RuntimeError, ValueError):
        return None


def set_version(tensor: Tensor, version: int) -> None:
    """Counts the tensor's modifications from here on; for bytes that were put back. Not of an inference tensor."""
    if not tensor.is_inference():
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def parts_of(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors that hold its bytes: itself, or those of which a subclass is made (DTensor); a fake one has none."""
    if not computes_itself(tensor):
        yield tensor
    elif hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            if isinstance(part := getattr(tensor, name), Tensor):  # a DTensor's mesh is among them
                yield from parts_of(part)


def bytes_below(tensor: Tensor) -> torch.UntypedStorage | None:
    """The tensor's storage itself; None for those that have none of their own."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):
        return None


_NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64, torch.int64: torch.int8}


def is_number(tensor: Tensor) -> bool:
    """Whether the tensor stands for a Python number that an operation was given (`x * 2`): type promotion tells.

    `saved_tensors_hooks` never see such a tensor (saved_variable.cpp, is_wrapped_number). A bool's can't be told from
    other tensors. To be called `unobserved`.
    """
    narrower = _NARROWER.get(tensor.dtype)
    if narrower is None or tensor.is_nested or tensor.dim():
        return False
    return torch.result_type(tensor, torch.ones((), dtype=narrower, device="cpu")) is narrower


def beneath_transforms(tensor: Tensor) -> Tensor:
    """The tensor that has the numbers and the graph, where functorch's transforms (vmap, grad) wrap it; else itself."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def is_abstract(tensor: Tensor) -> bool:
    """Whether it has no elements that could be read: it stands for another tensor inside a transform of torch.func, or
    for zeros of which there are no bytes (in forward mode)."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor._is_zerotensor())


def stored_values(tensor: Tensor) -> Tensor:
    """The elements that a sparse tensor stores. Of COO tensors they come as they are, not coalesced: no waiting."""
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def stored_bytes(tensor: Tensor) -> int:
    """What a COO tensor stores: its elements and their indices."""
    return sum(each.numel() * each.element_size() for each in stored_parts(tensor))


def stored_parts(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The tensors of which a COO tensor is made: its indices and its elements."""
    return tensor._indices(), tensor._values()


def computes_itself(tensor: Tensor) -> bool:
    """Whether it is of a subclass that runs operations in its own way (`__torch_dispatch__`: DTensor, FakeTensor)."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def is_fake(tensor: Tensor) -> bool:
    """Whether it is one of FakeTensorMode's: it has a device, a layout and a storage of some size, and no bytes."""
    return isinstance(tensor, FakeTensor)


def is_wrapped(tensor: Tensor) -> bool:
    """Whether its storage is that of other tensors, as a DTensor's; a fake one has its own, without bytes."""
    return computes_itself(tensor) and not is_fake(tensor)


def without_bytes(tensor: Tensor) -> str:
    """Why there is no memory below the tensor, in words; "" where there is."""
    if tensor.device.type == "meta":
        return "on the meta device"
    if is_fake(tensor):
        return "a fake tensor (FakeTensorMode)"
    if computes_itself(tensor) and hasattr(tensor, "__tensor_flatten__"):
        parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        return next(filter(None, (without_bytes(part) for part in parts if isinstance(part, Tensor))), "")
    return ""


def identity_of(tensor: Tensor) -> int:
    """The address of the C++ tensor (TensorImpl), which all Python objects of it share."""
    identity: int = tensor._cdata
    return identity


def is_view(tensor: Tensor) -> bool:
    """Whether autograd knows it as a view; such a tensor keeps its base, and so holds its storage twice."""
    return tensor._is_view()


class FollowedStorage:
    """Tells whether a tensor's bytes still live, without keeping them. No others get their address while it is there.

    Attributes:
        address: that of the bytes.
    """

    __slots__ = ("_reference", "address")

    def __init__(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.address: int = storage._cdata
        self._reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    @property
    def alive(self) -> bool:
        return not self._reference.expired()  # type: ignore[no-untyped-call]


def is_lift(operator: object) -> bool:
    """Whether it hands over a tensor that was filled with Python's or NumPy's numbers, which no operation shows."""
    return operator is LIFT


DETACH, ALIAS, LIFT = (getattr(torch.ops.aten, name).default for name in ("detach", "alias", "lift_fresh"))


def detached(tensor: Tensor) -> Tensor:
    """The same bytes and version counter, no graph.

    Inside of an operation, where pack hooks run and dispatch modes are called, torch's own detach() gives a tensor with
    a version counter of its own.
    """
    excluded = _key_is_excluded(_IN_PLACE_OR_VIEW)
    if excluded:
        _exclude_key(_IN_PLACE_OR_VIEW, False)
    try:
        if computes_itself(tensor) or not torch._C._len_torch_dispatch_stack():
            return tensor.detach()
        with torch._C._DisableTorchDispatch():  # no mode of this thread needs to see it
            return tensor.detach()
    finally:
        if excluded:
            _exclude_key(_IN_PLACE_OR_VIEW, True)


_IN_PLACE_OR_VIEW = torch._C.DispatchKey.ADInplaceOrView
_key_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_exclude_key = torch._C._dispatch_tls_set_dispatch_key_excluded


def on_storage(storage: torch.UntypedStorage, view: View) -> Tensor:
    """A tensor on these bytes."""
    dtype, offset, shape, strides, conjugated, negated = view
    tensor = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, strides)
    if conjugated:
        tensor = torch._conj(tensor)
    if negated:
        tensor = torch._neg_view(tensor)
    return tensor


class View(NamedTuple):
    """What a tensor is besides its storage; offset and strides are in elements."""

    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    conjugated: bool
    negated: bool

    @staticmethod
    def of(tensor: Tensor) -> View:
        return View(
            tensor.dtype,
            tensor.storage_offset(),  # type: ignore[arg-type]
            tensor.shape,
            tensor.stride(),
            tensor.is_conj(),
            tensor.is_neg(),
        )
