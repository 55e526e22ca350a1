"""Restoring the state that runs of a user's program change: .grad, buffers, parameters, random numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from operator import is_
from threading import local
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.parameter import is_lazy
from torch.nn.utils import stateless

from ...inspector.capture.operator_traits import traits_of, written_by
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
from ..session.error_notes.explain_error import explain_error
from .carried_state import CarriedState
from .make_loss import (
    MakeLoss,
    expect_restorable,
    for_all,
    loss_of,
    own_gradients,
    refuse_whole_step,
    same_flags,
    same_random_numbers,
    sharding_as_before,
)


class _Open(local):
    """The `AsFound` contexts that are open in this thread. Weak, so that Ctrl-C while one is left keeps none."""

    def __init__(self) -> None:
        self.contexts: set[ref[AsFound]] = set()  # counted at each call of a module; counting a WeakSet is slow


_open = _Open()


def open_contexts() -> Collection[object]:
    """Return the `AsFound` contexts that are open in this thread, now or later: what runs inside of one is undone."""
    return _open.contexts


class AsFound:
    """A context in which forwards and backwards run (in `watched` and `run`), each from the state the first one found.

    It restores:

    * .grad of all leaves, and of tensors that retain it: the same objects with the same bits, including tensors reached
      only by a nested backward (reentrant checkpoints, custom Functions)
    * the bits of all earlier tensors that are modified, including buffers and parameters, also if `.data` is set
    * which tensors are a module's parameters and buffers
    * parameters that FSDP2 has gathered, and gradients that it has summed
    * the random number generators of torch, Python and NumPy, and those passed to operations
    * flags of torch (`FLAGS`)
    * Python state: attributes of modules, the state of optimizers, variables in closures, which tensors require grad
      (see `CarriedState`, which also reports state that could not be restored)

    Weights that an open `torch.autocast` has cast and cached are cleared before each forward and at the end. Each
    forward casts its own, as under a newly opened autocast.

    A watched run detects which tensors are modified, and copies them before the first write. Later runs need not be
    watched.

    Known limitations: data modified outside torch's operations (through `Tensor.numpy()`, or in an extension), and
    files, are not restored. A lazy module stays materialized.

    Args:
        make_loss: runs the forward.
        verb: the verb that runs it, such as `ts.compare`.
        refuses: whether state that cannot be restored is an error, once detected; otherwise it is a warning.
        also: other functions that run.
    """

    def __init__(
        self, make_loss: Callable[..., Any], verb: str, refuses: bool = False, also: Sequence[object] = ()
    ) -> None:
        self._program = make_loss, verb, refuses, also
        self.verb = verb
        self.carried: CarriedState
        self._modules: WeakSet[nn.Module] = WeakSet()
        self._bound: list[tuple[dict[str, Any], dict[str, Any]]] = []  # dicts of parameters or buffers, and copies
        self._tensors = _Tensors()
        self._opened = ExitStack()
        self._depth = 0

    def __enter__(self) -> Self:
        try:
            contexts = _open.contexts
            contexts.add(ref(self, contexts.discard))
            self._opened.callback(contexts.discard, ref(self))
            self._opened.enter_context(sharding_as_before())
            # After `sharding_as_before` has hidden the hooks of sharded parameters; otherwise each run would add them
            # again.
            self.carried = CarriedState(*self._program)
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
            explain_error(error, modules=self.modules)
            self.carried.explain(error)
        self._opened.__exit__(kind, error, traceback)

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that were called and are still alive."""
        return list(self._modules)

    @property
    def leaves(self) -> list[Tensor]:
        """The leaves used by operations of watched runs that are still alive."""
        return [each for reference in self._tensors.leaves if (each := reference()) is not None]

    @property
    def make_loss(self) -> MakeLoss:
        """The function that runs the forward, and checks for state that cannot be restored."""
        return self.carried.make_loss

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the operations of a run, or of part of it; compiled code runs uncompiled."""
        with self._part(), uncompiled(), self._tensors:
            yield

    def watch(self, backward: bool = True) -> Tensor | HipsTape:
        """Run the forward and backward once, watched, and return the result of the forward.

        A loss without data has no backward here, because it could not change anything.
        """
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
        """Do another run, which adds to copies of each .grad.

        Args:
            leaves: further leaves of its graph, if it is not the first run's.
            zeroed: start without any .grad, as after `zero_grad()`.
        """
        found = self.leaves
        known = set(map(id, found))
        with self._part(), own_gradients([*found, *(leaf for leaf in leaves if id(leaf) not in known)], zeroed):
            yield

    @contextmanager
    def _part(self) -> Iterator[None]:
        """Restore everything after the outermost part. In between, a backward needs the tensors that its forward has
        modified."""
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
                if not each.requires_grad and issubclass(type(each), nn.Parameter):  # a frozen parameter
                    self._tensors.note_data(each)

    def _note_module(self, module: nn.Module, arguments: object = None) -> None:
        if is_dynamo_compiling() or module in self._modules:
            return
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename == stateless.__file__:  # functional_call restores a module's tensors itself
                return
            frame = frame.f_back  # type: ignore[assignment]
        of_fsdp = {id(tensor) for each in sharded_parameters() for tensor in (each.shard, each.gathered)} - {id(None)}
        for each in module.modules():
            if each in self._modules:
                continue
            self._modules.add(each)
            if not isinstance(each, torch.jit.ScriptModule):  # its tensors cannot be replaced
                self._bound.append((each._buffers, dict(each._buffers)))
                if of_fsdp.isdisjoint(map(id, each._parameters.values())):  # FSDP2 replaces these itself
                    self._bound.append((each._parameters, dict(each._parameters)))
            for buffer in each._buffers.values():
                if buffer is not None:
                    self._tensors.note_data(buffer)

    def put_back(self) -> None:
        """Restore everything; if one part fails, the others are still restored."""
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
    # The same objects in the same order; tensors are not compared by value.
    if list(names) != list(before) or not all(map(is_, names.values(), before.values())):
        names.clear()
        names.update(before)


def _put_data(kept: tuple[ref[Tensor], Tensor]) -> None:
    tensor, data = kept[0](), kept[1]
    if tensor is None:
        return
    same_memory = tensor.data_ptr() == data.data_ptr() and tensor.dtype == data.dtype
    if not (same_memory and tensor.shape == data.shape and tensor.stride() == data.stride()):
        tensor.data = data


def _put_grad(kept: tuple[ref[Tensor], Tensor | None]) -> None:
    tensor, grad = kept[0](), kept[1]
    if tensor is not None and tensor.grad is not grad:
        tensor.grad = grad


@contextmanager
def same_versions(tensors: Iterable[ref[Tensor]]) -> Iterator[None]:
    """Restore the version counters of these tensors, for code that does not change their data."""
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
    """The tensors that existed before, with the .grad and `.data` of those recorded.

    While it is open as a mode, it copies the data of tensors that operations write to, before the first write. It holds
    no reference to `AsFound`, which would create a cycle.

    Attributes:
        leaves: leaves used by operations.
    """

    sees_backward = True

    def __init__(self) -> None:
        super().__init__()
        self.leaves: list[ref[Tensor]] = []
        self._grads: list[tuple[ref[Tensor], Tensor | None]] = []
        self._data: list[tuple[ref[Tensor], Tensor]] = []  # leaves and buffers, with their original data
        self._known: dict[int, ref[Tensor]] = {}  # tensors in `_grads`, by id()
        self._seen: dict[int, ref[Tensor]] = {}  # leaves, by id()
        self._made: dict[int, FollowedStorage] = {}  # storages created by the run, by address
        self._before: dict[
            int, tuple[torch.UntypedStorage, torch.UntypedStorage]
        ] = {}  # storages and their copies, by address
        self._versions: list[tuple[Tensor, int]] = []  # modified tensors and their earlier versions
        self._contents: dict[int, Callable[[], None]] = {}  # restores tensors without a storage, by id()
        self._generators: dict[torch.Generator, Tensor] = {}
        # Storages that FSDP2 fills and frees. It uses what it has filled in the next run, so its writes stay.
        self._gathered = {
            each.gathered.untyped_storage()._cdata for each in sharded_parameters() if each.gathered is not None
        }

    def note_leaf(self, tensor: Tensor) -> None:
        """Record its .grad, if it may get one."""
        if tensor.requires_grad and _keeps_gradient(tensor) and _is_new(tensor, self._known):
            self._grads.append((self._known[id(tensor)], tensor.grad))
            if tensor.is_leaf:
                self.note_data(tensor)

    def note_data(self, tensor: Tensor) -> None:
        """Record where its data is, in case `.data` is set; an uninitialized lazy parameter has none."""
        own = not (is_lazy(tensor) or computes_itself(tensor) or tensor.is_nested)
        if own and bytes_below(tensor) is not None:
            with unobserved():
                self._data.append((ref(tensor), tensor.detach()))

    def restore(self) -> None:
        """Restore the recorded state."""
        steps: list[Callable[[], object]] = [
            lambda: for_all(self._data, _put_data),
            lambda: for_all(self._grads, _put_grad),  # after the data, since both must have the same dtype
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
                self.note_leaf(tensor)
                self.leaves.append(self._seen[id(tensor)])
                if tensor.grad is not None:  # use a copy, since another graph may have saved the original
                    expect_restorable(tensor)
                    with unobserved():
                        tensor.grad = tensor.grad.clone()
                        self._note_made(tensor.grad, ())
            given.update(part.untyped_storage()._cdata for part in strided_parts(tensor))
        if traits_of(operator).may_write:
            self._note_written(written_by(operator, args, kwargs))
        elif operator.namespace == "c10d":  # schemas of collectives do not declare what they modify
            self._note_written(tensors_of(args))
        for each in (*args, *kwargs.values()):
            if isinstance(each, torch.Generator) and each not in self._generators:
                self._generators[each] = each.get_state()
        result = operator(*args, **kwargs)
        for tensor in tensors_of(result):
            self._note_made(tensor, given)
        return result

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
            at = storage._cdata
            if part.is_meta or at in self._before or at in self._gathered or self._is_made(storage):
                continue
            self._versions.append((detached(part), version_of(part)))
            with unobserved():
                self._before[at] = storage, storage.clone()  # type: ignore[no-untyped-call]

    def _note_content(self, tensor: Tensor) -> None:
        """Record the values of a tensor that has no storage itself, such as a sparse one."""
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
    if storage.nbytes() == copy.nbytes():  # otherwise FSDP has freed it
        storage.copy_(copy)


def _keeps_gradient(tensor: Tensor) -> bool:
    try:
        return tensor.is_leaf or tensor.retains_grad
    except RuntimeError:  # as `is_leaf` of the private tensors module does
        return False


def _is_new(tensor: Tensor, known: dict[int, ref[Tensor]]) -> bool:
    """Return whether a tensor is not in `known`, and add it."""
    number = id(tensor)
    if number in known and known[number]() is tensor:
        return False
    known[number] = ref(tensor)
    return True


keep_compiler_out(AsFound._note_module)
