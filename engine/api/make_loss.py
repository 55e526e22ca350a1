"""The `make_loss` callables that users pass: validation of the function and its result, and restoring of shared
state."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Number
from threading import get_ident
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.autograd.graph import Node

from ...inspector.hips.tape import HipsTape
from ...inspector.torch_private.call_watchers import watching_modules
from ...inspector.torch_private.checkpoints import watching_reentrant_checkpoints
from ...inspector.torch_private.distributed import (
    Sharding,
    flattens,
    is_flattened,
    is_fully_sharded,
    sharded_parameters,
)
from ...inspector.torch_private.random_states import accelerators_awake, same_random_states
from ...inspector.torch_private.saved_variables import first_freed
from ...inspector.torch_private.sequence_numbers import UNNUMBERED, number_of
from ...inspector.torch_private.tensors import without_bytes
from ...inspector.torch_private.thread_state import FLAGS
from ...inspector.validation import a_kind, expect_callable
from ..execution.unsupported import refuse_transforms

MakeLoss = Callable[[], Tensor]

T = TypeVar("T")


def expect_make_loss(make_loss: object, verb: str) -> None:
    """Raise unless `make_loss` is a function without arguments that can run a forward.

    Args:
        make_loss: the object passed.
        verb: the verb that runs it, such as `ts.find_nan`.

    Raises:
        TypeError: it cannot be called as `make_loss()`.
        RuntimeError: the call is inside a transform of torch.func.
    """
    refuse_transforms(verb)
    wanted = "a function that runs the forward and returns the loss, such as `lambda: model(x).sum()`"
    expect_callable(make_loss, 0, "make_loss", wanted)


def loss_of(made: object) -> Tensor:
    """Return the result of `make_loss` if it is a loss.

    Raises:
        TypeError: it is not a tensor.
        ValueError: it does not have exactly one element.
    """
    if not isinstance(made, Tensor):
        kind = a_kind(made)
        if isinstance(made, tuple | list):
            kind += f" of ({', '.join(type(part).__name__ for part in made)})"
        if isinstance(made, HipsTape):
            raise TypeError(
                "make_loss() returned a tape of HIPS autograd; this function needs a PyTorch tensor. "
                "ts.debug, ts.backward, ts.profile, ts.compare and ts.find_nan accept tapes"
            )
        raise TypeError(f"make_loss() returned {kind}; expected the loss, a single tensor{to_return_instead(made)}")
    if made.is_nested or made.numel() != 1:
        shape = "nested" if made.is_nested else "of shape " + "×".join(map(str, made.shape))
        raise ValueError(f"make_loss() returned a tensor {shape}; expected one element, such as its .sum()")
    return made


def to_return_instead(made: object) -> str:
    """Return a hint about what to return instead of this object, for the end of a sentence."""
    if made is None:
        return ". To measure a function that runs a complete step, use ts.profile_step"
    if isinstance(made, nn.Module):
        return ". Return the loss computed with the model, such as model(x).sum()"
    if isinstance(made, Mapping) and isinstance(made.get("loss"), Tensor):
        return '. Return its ["loss"]'
    if isinstance(getattr(made, "loss", None), Tensor):
        return ". Return its .loss"
    if callable(made):
        return ". Call it and return its result"
    if isinstance(made, Generator | Coroutine):
        return ". The function contains a `yield` or is `async`; return the loss instead"
    parts = list(made.values()) if isinstance(made, Mapping) else made if isinstance(made, tuple | list) else ()
    if any(isinstance(part, Tensor) for part in parts):
        return ". Return one of them, or the sum of losses"
    if isinstance(made, Number) or type(made).__module__ == "numpy":
        return ". A number has no graph; return the tensor, without .item(), float() or .numpy()"
    return ""


def real_loss_of(made: object) -> Tensor:
    """Return the loss as `loss_of` does, for verbs that measure memory or read values.

    Raises:
        TypeError, ValueError: as `loss_of`.
        ValueError: the loss has no data.
    """
    loss = loss_of(made)
    if kind := without_bytes(loss):
        raise ValueError(
            f"make_loss() returned a loss that is {kind}, which has no data to measure; ts.simulate(ts.graph(loss)) "
            "and "
            "ts.plan_order(loss) predict the memory of its backward"
        )
    return loss


def loss_or_tape(made: object) -> Tensor | HipsTape:
    """Return the result of `make_loss` if it is a loss, or a tape of HIPS autograd.

    Raises:
        TypeError, ValueError: as `real_loss_of`.
    """
    return made if isinstance(made, HipsTape) else real_loss_of(made)


def refuse_whole_step(made: Tensor | HipsTape, since: int) -> None:
    """Raise if `make_loss` has run the backward of its loss itself.

    Args:
        made: the loss.
        since: the sequence number before the call.

    Raises:
        RuntimeError: the saved tensors of its newest nodes have been freed.
    """
    if isinstance(made, Tensor) and has_run_backward(made, since):
        raise RuntimeError(
            "make_loss() has already run the backward of its loss; return the loss without calling .backward() on it. "
            "ts.profile_step(step) measures a function that runs a complete training step, with backward and optimizer"
        )


def has_run_backward(loss: Tensor, since: int) -> bool:
    """Return whether a backward has run through the nodes created for a loss since this sequence number."""
    return first_freed(_made_since(since, loss)) is not None


def _made_since(number: int, loss: Tensor) -> Iterator[Node]:
    """Yield the nodes below a loss with this sequence number or a later one, from the loss on, without leaves."""
    todo = deque([loss.grad_fn])
    seen: set[Node] = set()
    while todo:
        node = todo.popleft()
        if node is not None and node not in seen and number <= number_of(node) < UNNUMBERED:
            seen.add(node)
            yield node
            todo.extend(below for below, _ in node.next_functions)


def for_all(items: Iterable[T], act: Callable[[T], object]) -> None:
    """Call `act` on each item, even after one call has raised, then raise the first error.

    So one failure does not keep other state from being restored.
    """
    first: BaseException | None = None
    for item in items:
        try:
            act(item)
        except BaseException as error:
            first = first or error
    if first is not None:
        try:
            raise first
        finally:
            del first  # the error's traceback holds this frame, which must not hold the error


def expect_restorable(leaf: Tensor) -> None:
    """Raise NotImplementedError if PyTorch refuses to assign the .grad of a leaf to it again, so it must stay there."""
    grad = leaf.grad
    if grad is None:
        return
    try:
        leaf.grad = grad  # nothing changes: it is the same object, or the error comes before the assignment
    except RuntimeError as error:
        raise NotImplementedError(
            f"a leaf of shape {tuple(leaf.shape)} and layout {leaf.layout} has a gradient of layout {grad.layout}, "
            "which PyTorch does not allow to be assigned, so it could not be restored after the runs; set its .grad to "
            "None first"
        ) from error


@contextmanager
def own_gradients(leaves: Sequence[Tensor], zeroed: bool = False) -> Iterator[None]:
    """Replace each .grad by a copy during a run, so that the run adds to the copy, and restore all afterwards.

    Args:
        leaves: the leaves.
        zeroed: use no .grad instead of copies, as after `zero_grad()`.

    Raises:
        NotImplementedError: If a .grad could not be restored.
    """
    for leaf in leaves:
        expect_restorable(leaf)
    before = [leaf.grad for leaf in leaves]
    try:
        for leaf, grad in zip(leaves, before, strict=True):
            leaf.grad = None if grad is None or zeroed else grad.clone()
        yield
    finally:
        for_all(zip(leaves, before, strict=True), lambda each: setattr(each[0], "grad", each[1]))


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Restore the random number generators of torch, Python and NumPy afterwards."""
    # Only if the program has imported NumPy; importing it here would cost time and change nothing.
    numpy = sys.modules.get("numpy")
    before, numpys = random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        with same_random_states(accelerators_awake()):
            yield
    finally:
        random.setstate(before)
        if numpy is not None and numpys is not None:
            numpy.random.set_state(numpys)


@contextmanager
def same_flags() -> Iterator[None]:
    """Restore flags that a program may set as it runs (`FLAGS`)."""
    before = [(write, read, read()) for read, write in FLAGS]
    try:
        yield
    finally:
        for_all(before, _put_process_flag)


def _put_process_flag(kept: tuple[Callable[[Any], object], Callable[[], Any], Any]) -> None:
    write, read, before = kept
    if read() != before:
        write(before)


@contextmanager
def sharding_as_before() -> Iterator[None]:
    """Restore parameters that `fully_shard` (FSDP2) has gathered, and gradients that it has accumulated.

    Use it around a forward and any part of its backward. Without a backward, FSDP2 would continue with the gathered
    parameters, and miss the optimizer's updates of the shards.

    Raises:
        NotImplementedError: a module of FullyShardedDataParallel (FSDP1) is called, whose state cannot be restored; or
            there are reentrant checkpoints, whose backward leaves parameters gathered for the next step.
    """
    sharding, ended = Sharding(), False
    try:
        with (
            _refusing(is_flattened, _FSDP1) if flattens() else nullcontext(),
            _nothing_reentrant() if sharded_parameters() else nullcontext(),
        ):
            yield
        ended = True
    finally:
        sharding.put_back(gather=ended)


@contextmanager
def _nothing_reentrant() -> Iterator[None]:
    """Raise if reentrant checkpoints and modules under `fully_shard` are both called, at the second call."""
    thread = get_ident()
    called: dict[str, nn.Module | None] = {}

    def refuse(what: str, module: nn.Module | None) -> None:
        if get_ident() != thread:
            return
        called.setdefault(what, module)
        if len(called) == 2:
            raise NotImplementedError(_REENTRANT.format(name=type(called["module"]).__name__))

    def sharded(module: nn.Module, arguments: object) -> None:
        if is_fully_sharded(module):
            refuse("module", module)

    with watching_modules(sharded), watching_reentrant_checkpoints(lambda: refuse("checkpoint", None)):
        yield


@contextmanager
def nothing_sharded(verb: str) -> Iterator[None]:
    """Raise when a module of FSDP, of either kind, is called, before it gathers anything.

    Raises:
        NotImplementedError: from the call.
    """
    sentence = (
        f"{verb} runs single operations of the forward again, and {{name}} is under fully_shard (FSDP2), which has "
        "freed its parameters by then; use the model without fully_shard"
    )
    with _refusing(is_flattened, _FSDP1), _refusing(is_fully_sharded, sentence):
        yield


_REENTRANT = (
    "a forward of {name}, which is under fully_shard (FSDP2), has a reentrant checkpoint. Its nested "
    "backward may leave parameters gathered, which the next step would use instead of the updated ones, so running it "
    "outside of training may change the next step; use checkpoint(..., use_reentrant=False)"
)
_FSDP1 = (
    "FullyShardedDataParallel keeps its gradients in flat parameters, which a forward outside of training would "
    "change; use the model without it, or under fully_shard (FSDP2)"
)


@contextmanager
def _refusing(refused: Callable[[nn.Module], bool], sentence: str) -> Iterator[None]:
    thread = get_ident()

    def refuse(module: nn.Module, arguments: object) -> None:
        if get_ident() == thread and refused(module):
            raise NotImplementedError(sentence.format(name=type(module).__name__))

    with watching_modules(refuse):
        yield
