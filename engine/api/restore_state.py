"""What runs of a user's program change, put back as it was found: .grad, buffers, parameters, random numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from operator import is_
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.parameter import is_lazy
from torch.nn.utils import stateless

from ...inspector.capture.operator_traits import may_write, written_by
from ...inspector.graph.node_metadata import tensors_of
from ...inspector.hips.tape import HipsTape
from ...inspector.torch_private.call_watchers import watching_modules
from ...inspector.torch_private.compiled import keep_compiler_out, uncompiled
from ...inspector.torch_private.distributed import sharded_parameters
from ...inspector.torch_private.engine import torch_backward
from ...inspector.torch_private.operators import Operator, SeenOperations
from ...inspector.torch_private.sequence_numbers import sequence_nr
from ...inspector.torch_private.tensors import (
    FollowedStorage,
    bytes_below,
    computes_itself,
    content_of,
    detached,
    parts_of,
    set_version,
    strided_parts,
    version_of,
    without_bytes,
)
from ...inspector.torch_private.thread_state import unobserved, without_torch_function
from ..memory.out_of_memory import explain_out_of_memory
from .carried_state import CarriedState
from .make_loss import (
    MakeLoss,
    for_all,
    loss_of,
    own_gradients,
    refuse_whole_step,
    same_flags,
    same_random_numbers,
    sharding_as_before,
)


class AsFound:
    """While it is open, forwards and backwards may run in `watched` and `run`; each finds what the first one found.

    Put back are: .grad of all leaves there are, and of tensors that retain it, the same objects with the same bits,
    also of those that are reached only by a backward inside the backward (reentrant checkpoints, custom Functions);
    the bits of all tensors that were there before and are written, buffers and parameters among them, also by setting
    `.data`; which tensors are a module's parameters and buffers; what FSDP2 has gathered and summed; the generators of
    random numbers, torch's, Python's, NumPy's, and those that operations were given; flags of torch (`FLAGS`); and what
    the program keeps in Python: attributes of modules, the state of optimizers, what closures lead to, which tensors
    require grad (see `CarriedState`, which also says what could not be put back).

    Casts of weights that an open `torch.autocast` has cached are cleared before each forward and at the end: each
    makes its own, as one does for which autocast is opened anew.

    A run that is watched shows what is written; that is copied before it is. Others, after it, are not watched.

    Known limitations: what is written past torch's operations (through `Tensor.numpy()`, in an extension), and files,
    stay as the program left them. A lazy module stays made.

    Args:
        make_loss: runs the forward.
        verb: who runs it, `ts.compare`.
        refuses: what the program carries on and can't be put back is an error, once it is seen; else a warning.
        also: functions that run besides.
    """

    def __init__(
        self, make_loss: Callable[..., Any], verb: str, refuses: bool = False, also: Sequence[object] = ()
    ) -> None:
        self._given = make_loss, verb, refuses, also
        self.carried: CarriedState
        self._modules: WeakSet[nn.Module] = WeakSet()
        self._bound: list[tuple[dict[str, Any], dict[str, Any]]] = []  # modules' parameters and buffers by name
        self._tensors = _Tensors()
        self._opened = ExitStack()
        self._depth = 0

    def __enter__(self) -> Self:
        try:
            self._opened.enter_context(sharding_as_before())
            # After that has hidden the hooks of sharded parameters: each run would have them again otherwise.
            self.carried = CarriedState(*self._given)
            self._opened.callback(self.put_back)
            self._opened.enter_context(same_random_numbers())
            self._opened.enter_context(same_flags())
            self._note_leaves()
            self._opened.enter_context(watching_modules(self._note_module))
            return self
        except BaseException:
            self._opened.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            explain_out_of_memory(error)
            self.carried.explain(error)
        self._opened.__exit__(kind, error, traceback)

    @property
    def modules(self) -> list[nn.Module]:
        """Those that were called, as long as they live."""
        return list(self._modules)

    @property
    def leaves(self) -> list[Tensor]:
        """Those that operations of watched runs took, as long as they live."""
        return [each for reference in self._tensors.leaves if (each := reference()) is not None]

    @property
    def make_loss(self) -> MakeLoss:
        """Runs the forward, and sees whether it carries something on that can't be put back."""
        return self.carried.make_loss

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A run, or a part of it, whose operations are watched. What is compiled runs as it was written."""
        with self._part(), uncompiled(), self._tensors:
            yield

    def watch(self, backward: bool = True) -> Tensor | HipsTape:
        """Runs forward and backward once, watched: without bytes no backward, which could change none. Gives what was
        made."""
        with self.watched():
            since = sequence_nr()
            made = self.make_loss()
            loss = None if isinstance(made, HipsTape) else loss_of(made)
            refuse_whole_step(made, since)
            if backward and loss is not None and loss.requires_grad and not without_bytes(loss):
                torch_backward(loss)
        return made

    @contextmanager
    def run(self, leaves: Sequence[Tensor] = (), zeroed: bool = False) -> Iterator[None]:
        """Another run. It adds to copies of what is in .grad.

        Args:
            leaves: of its graph, should it not be that of the first one.
            zeroed: it finds no .grad, as after `zero_grad()`.
        """
        found = self.leaves
        known = set(map(id, found))
        with self._part(), own_gradients([*found, *(leaf for leaf in leaves if id(leaf) not in known)], zeroed):
            yield

    @contextmanager
    def _part(self) -> Iterator[None]:
        """All is put back after the outermost: in between a backward needs what its forward has written."""
        self._depth += 1
        try:
            with same_random_numbers(), same_flags():
                yield
        finally:
            self._depth -= 1
            if not self._depth:
                self.put_back()
        if not self._depth:
            self.carried.tell()

    def _note_leaves(self) -> None:
        with without_torch_function():
            for reference in self.carried.tensors:
                if (each := reference()) is None:
                    continue
                self._tensors.note_leaf(each)
                if not each.requires_grad and issubclass(type(each), nn.Parameter):  # a frozen one
                    self._tensors.note_data(each)

    def _note_module(self, module: nn.Module, arguments: object = None) -> None:
        if is_dynamo_compiling() or module in self._modules or _in_functional_call():
            return
        of_fsdp = {id(tensor) for each in sharded_parameters() for tensor in (each.shard, each.gathered)} - {id(None)}
        for each in module.modules():
            if each in self._modules:
                continue
            self._modules.add(each)
            if not isinstance(each, torch.jit.ScriptModule):  # it binds no other
                self._bound.append((each._buffers, dict(each._buffers)))
                if of_fsdp.isdisjoint(map(id, each._parameters.values())):  # which binds what it has gathered
                    self._bound.append((each._parameters, dict(each._parameters)))
            for buffer in each._buffers.values():
                if buffer is not None:
                    self._tensors.note_data(buffer)

    def put_back(self) -> None:
        """Puts all back, each also where another can't be."""
        steps: list[Callable[[], object]] = [
            torch.clear_autocast_cache,
            self.carried.put_back,
            lambda: for_all(self._bound, _bind),
            self._tensors.restore,
        ]
        with unobserved():
            for_all(steps, lambda step: step())


def _bind(kept: tuple[dict[str, Any], dict[str, Any]]) -> None:
    names, before = kept
    if not _is_same(names, before):
        names.clear()
        names.update(before)


def _put_data(kept: tuple[ref[Tensor], Tensor]) -> None:
    tensor, data = kept[0](), kept[1]
    if tensor is not None and not _sees_same(tensor, data):
        tensor.data = data


def _put_grad(kept: tuple[ref[Tensor], Tensor | None]) -> None:
    tensor, grad = kept[0](), kept[1]
    if tensor is not None and tensor.grad is not grad:
        tensor.grad = grad


@contextmanager
def same_versions(tensors: Iterable[ref[Tensor]]) -> Iterator[None]:
    """Around what changes no bytes of these tensors: none of them counts as modified by it."""
    with without_torch_function():
        before = [(each, version_of(tensor)) for each in tensors if (tensor := each()) is not None]
    try:
        yield
    finally:
        for_all(before, _put_version)


def _put_version(kept: tuple[ref[Tensor], int]) -> None:
    tensor, version = kept[0](), kept[1]
    if tensor is not None and version_of(tensor) != version:
        set_version(tensor, version)


class _Tensors(SeenOperations):  # type: ignore[no-untyped-call]
    """The tensors that were there before: .grad and `.data` of those noted, and, while it is open as a mode, the bytes
    of those that operations write, copied before the first write. Refers to no `AsFound`, which would make a cycle.

    Attributes:
        leaves: leaves that operations take.
    """

    sees_backward = True

    def __init__(self) -> None:
        super().__init__()
        self.leaves: list[ref[Tensor]] = []
        self._grads: list[tuple[ref[Tensor], Tensor | None]] = []
        self._data: list[tuple[ref[Tensor], Tensor]] = []  # leaves and buffers, and where their bytes were
        self._known: dict[int, ref[Tensor]] = {}  # by id() those in `_grads`
        self._seen: dict[int, ref[Tensor]] = {}  # by id() the leaves
        self._made: dict[int, FollowedStorage] = {}  # by address what operations of the run made
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}  # by address, and a copy
        self._versions: list[tuple[Tensor, int]] = []  # of what is written
        self._contents: dict[int, Callable[[], None]] = {}  # by id() what puts back those without a storage
        self._generators: dict[torch.Generator, Tensor] = {}

    def note_leaf(self, tensor: Tensor) -> None:
        """Notes its .grad, if it may get one."""
        if tensor.requires_grad and _keeps_gradient(tensor) and _is_new(tensor, self._known):
            self._grads.append((self._known[id(tensor)], tensor.grad))
            if tensor.is_leaf:
                self.note_data(tensor)

    def note_data(self, tensor: Tensor) -> None:
        """Notes where its bytes are, should `.data` be set; a lazy module's has none yet."""
        own = not (is_lazy(tensor) or computes_itself(tensor) or tensor.is_nested)
        if own and bytes_below(tensor) is not None:
            with unobserved():
                self._data.append((ref(tensor), tensor.detach()))

    def restore(self) -> None:
        """Puts back what was found."""
        steps: list[Callable[[], object]] = [
            lambda: for_all(self._data, _put_data),
            lambda: for_all(self._grads, _put_grad),  # of the dtype that the data has again
            lambda: for_all(self._before.values(), _put_bytes),
            lambda: for_all(self._versions, lambda each: set_version(*each)),
            lambda: for_all(self._contents.values(), lambda put_back: put_back()),
            lambda: for_all(self._generators.items(), lambda each: each[0].set_state(each[1])),
        ]
        for_all(steps, lambda step: step())

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given: set[int] = set()
        for tensor in tensors_of((args, kwargs)):
            if tensor.requires_grad and _keeps_gradient(tensor) and tensor.is_leaf and _is_new(tensor, self._seen):
                self._take_leaf(tensor)
            given.update(part.untyped_storage()._cdata for part in strided_parts(tensor))
        if may_write(operator):
            self._note_written(written_by(operator, args, kwargs))
        elif operator.namespace == "c10d":  # whose schemas don't say it
            self._note_written(tensors_of(args))
        for each in (*args, *kwargs.values()):
            if isinstance(each, torch.Generator) and each not in self._generators:
                self._generators[each] = each.get_state()
        result = operator(*args, **kwargs)
        for tensor in tensors_of(result):
            self._note_made(tensor, given)
        return result

    def _take_leaf(self, leaf: Tensor) -> None:
        self.note_leaf(leaf)
        self.leaves.append(self._seen[id(leaf)])
        if leaf.grad is not None:  # is not written into: another graph may have saved it
            with unobserved():
                leaf.grad = leaf.grad.clone()
                self._note_made(leaf.grad, ())

    def _note_made(self, tensor: Tensor, given: Collection[int]) -> None:
        for part in strided_parts(tensor):
            if part.untyped_storage()._cdata not in given:
                self._made[part.untyped_storage()._cdata] = FollowedStorage(part)

    def _note_written(self, tensors: Iterable[Tensor]) -> None:
        for part in chain.from_iterable(map(parts_of, tensors)):
            storage = bytes_below(part)
            if storage is None:
                self._note_content(part)
                continue
            if part.is_meta or storage._cdata in self._before or self._is_made(storage):
                continue
            self._versions.append((detached(part), version_of(part)))
            with unobserved():
                self._before[storage._cdata] = storage, storage.clone()  # type: ignore[no-untyped-call]

    def _note_content(self, tensor: Tensor) -> None:
        """Note the values of a tensor without a storage of its own, such as a sparse one."""
        parts = list(strided_parts(tensor))
        is_made = bool(parts) and all(self._is_made(part.untyped_storage()) for part in parts)
        if not is_made and not tensor.is_meta and id(tensor) not in self._contents:
            with unobserved():
                self._contents[id(tensor)] = content_of(tensor)

    def _is_made(self, storage: torch.UntypedStorage) -> bool:
        made = self._made.get(storage._cdata)
        return made is not None and made.alive


def _put_bytes(kept: tuple[torch.UntypedStorage, torch.UntypedStorage]) -> None:
    storage, copy = kept
    if storage.nbytes() == copy.nbytes():  # else FSDP has let go of it
        storage.copy_(copy)


def _keeps_gradient(tensor: Tensor) -> bool:
    try:
        return tensor.is_leaf or tensor.retains_grad
    except RuntimeError:  # as in `is_leaf`
        return False


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the same objects stand there in the same order; tensors are not compared by value."""
    return list(one) == list(other) and all(map(is_, one.values(), other.values()))


def _sees_same(tensor: Tensor, data: Tensor) -> bool:
    """Whether it is on the same bytes in the same way."""
    return (
        tensor.data_ptr() == data.data_ptr()
        and tensor.dtype == data.dtype
        and tensor.shape == data.shape
        and tensor.stride() == data.stride()
    )


def _is_new(tensor: Tensor, known: dict[int, ref[Tensor]]) -> bool:
    """Whether a tensor is not among these; it is then."""
    number = id(tensor)
    if number in known and known[number]() is tensor:
        return False
    known[number] = ref(tensor)
    return True


keep_compiler_out(AsFound._note_module)


def _in_functional_call() -> bool:
    """Whether this is inside of `torch.func.functional_call`: it puts back itself what modules bind meanwhile."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename != stateless.__file__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None
