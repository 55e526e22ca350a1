"""What users give to run a fresh forward, what has to come of it, and what it must not change."""

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
    """Refuses a loss that is there already, a model, and functions that want arguments.

    Args:
        verb: who runs it, `ts.find_nan`.

    Raises:
        TypeError: it can't be called as `make_loss()`.
        RuntimeError: this is inside a transform of torch.func.
    """
    refuse_transforms(verb)
    wanted = "a function that runs the forward and returns the loss, such as `lambda: model(x).sum()`"
    expect_callable(make_loss, 0, "make_loss", wanted)


def loss_of(made: object) -> Tensor:
    """What `make_loss` returned, if it is a loss.

    Raises:
        TypeError: it is no tensor.
        ValueError: it does not have one element.
    """
    if not isinstance(made, Tensor):
        what = a_kind(made)
        if isinstance(made, tuple | list):
            what += f" of ({', '.join(type(part).__name__ for part in made)})"
        if isinstance(made, HipsTape):
            raise TypeError(
                "make_loss() returned a tape of HIPS autograd's, and this needs PyTorch's operations, on a tensor; "
                "ts.debug, ts.backward, ts.profile, ts.compare and ts.find_nan take tapes"
            )
        raise TypeError(
            f"make_loss() returned {what}; expected a tensor, the loss, and nothing else{to_return_instead(made)}"
        )
    if made.is_nested or made.numel() != 1:
        shape = "nested" if made.is_nested else "of shape " + "×".join(map(str, made.shape))
        raise ValueError(f"make_loss() returned a tensor {shape}; expected one element, the loss, such as its .sum()")
    return made


def to_return_instead(made: object) -> str:
    """What to return in place of what is no loss, where that can be told, to stand at the end of a sentence."""
    if made is None:
        return ". A function that runs a whole step itself is measured by ts.profile_step"
    if isinstance(made, nn.Module):
        return ": return the loss that was made with the model, such as model(x).sum()"
    if isinstance(made, Mapping) and isinstance(made.get("loss"), Tensor):
        return ': return its ["loss"]'
    if isinstance(getattr(made, "loss", None), Tensor):
        return ": return its .loss"
    if callable(made):
        return ": return what it makes, by calling it"
    if isinstance(made, Generator | Coroutine):
        return ": the function has a `yield` or is `async`; return the loss"
    parts = list(made.values()) if isinstance(made, Mapping) else made if isinstance(made, tuple | list) else ()
    if any(isinstance(part, Tensor) for part in parts):
        return ": return one of them, or the sum of losses"
    if isinstance(made, Number) or type(made).__module__ == "numpy":
        return ": a number has no graph; return the tensor, without .item(), float() or .numpy()"
    return ""


def real_loss_of(made: object) -> Tensor:
    """`loss_of`, for what measures or looks at numbers.

    Raises:
        TypeError, ValueError: as `loss_of`; and it has no memory.
    """
    loss = loss_of(made)
    if what := without_bytes(loss):
        raise ValueError(
            f"make_loss() returned a loss which is {what}: there is no memory to measure, and there are no numbers to "
            "look at. ts.simulate(ts.graph(loss)) and ts.plan_order(loss) predict what its backward would take"
        )
    return loss


def loss_or_tape(made: object) -> Tensor | HipsTape:
    """What `make_loss` returned, if it is a loss, or a tape of HIPS autograd's.

    Raises:
        TypeError, ValueError: as `real_loss_of`.
    """
    return made if isinstance(made, HipsTape) else real_loss_of(made)


def refuse_whole_step(made: Tensor | HipsTape, since: int) -> None:
    """Refuses a loss whose backward has run in `make_loss`, after this sequence number: that was a whole step.

    Raises:
        RuntimeError: what its newest nodes had saved has been freed.
    """
    if isinstance(made, Tensor) and has_run_backward(made, since):
        raise RuntimeError(
            "make_loss() has run the backward of its loss itself, so that none is left to run: return the loss without "
            "calling .backward() on it. ts.profile_step(step) measures a function that runs a whole training step, "
            "with its backward and its optimizer"
        )


def has_run_backward(loss: Tensor, since: int) -> bool:
    """Whether what was made of a loss after this sequence number has had its backward."""
    return first_freed(_made_since(since, loss)) is not None


def _made_since(number: int, loss: Tensor) -> Iterator[Node]:
    """The nodes below a loss that have this sequence number or a later one, from the loss on, without leaves."""
    todo = deque([loss.grad_fn])
    seen: set[Node] = set()
    while todo:
        node = todo.popleft()
        if node is not None and node not in seen and number <= number_of(node) < UNNUMBERED:
            seen.add(node)
            yield node
            todo.extend(below for below, _ in node.next_functions)


def for_all(items: Iterable[T], act: Callable[[T], object]) -> None:
    """Acts on each item, also after one has raised, so that one failure does not keep the others from being put back.
    Then raises the first error."""
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
            del first  # else it would hold itself through this frame


@contextmanager
def own_gradients(leaves: Sequence[Tensor], zeroed: bool = False) -> Iterator[None]:
    """The run finds each .grad that was there as a copy, so that it adds to that one; afterwards all are put back.

    Args:
        leaves: whose.
        zeroed: it finds none, as after `zero_grad()`.
    """
    before = [leaf.grad for leaf in leaves]
    try:
        for leaf, grad in zip(leaves, before, strict=True):
            leaf.grad = None if grad is None or zeroed else grad.clone()
        yield
    finally:
        for_all(zip(leaves, before, strict=True), lambda each: setattr(each[0], "grad", each[1]))


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """The state of random numbers, torch's, Python's and NumPy's, is afterwards what it was before."""
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
    """What `fully_shard` (FSDP2) has gathered, accumulated and put into .grad is afterwards what it was before.

    Around a forward and what is run of its backward. Without a backward FSDP2 would go on with what it has gathered,
    and not see what the optimizer does to the shards.

    Raises:
        NotImplementedError: a module of FullyShardedDataParallel (FSDP1) is called, of which that is not known; or
            there are reentrant checkpoints, whose backward leaves parameters gathered that the next step takes.
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
    """Refuses reentrant checkpoints together with modules under `fully_shard`, at the call of what comes second."""
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
    """Refuses a module of FSDP, of either kind, as it is called, before it gathers anything.

    Raises:
        NotImplementedError: from the call.
    """
    sentence = (
        f"{verb} runs operations of the forward again by themselves, and {{name}} is under fully_shard (FSDP2), which "
        "has freed its parameters by then; take the model without fully_shard"
    )
    with _refusing(is_flattened, _FSDP1), _refusing(is_fully_sharded, sentence):
        yield


_REENTRANT = (
    "a forward of {name}, which is under fully_shard (FSDP2), has a reentrant checkpoint. The backward inside of "
    "the backward may leave parameters gathered that the next step takes in place of the updated ones, so a step that "
    "is not one of the training may change the next one; use checkpoint(..., use_reentrant=False)"
)
_FSDP1 = (
    "FullyShardedDataParallel keeps its gradients in flat parameters of its own, and a forward that is not a step of "
    "the training would change them; take the model without it, or under fully_shard (FSDP2)"
)


@contextmanager
def _refusing(refused: Callable[[nn.Module], bool], sentence: str) -> Iterator[None]:
    thread = get_ident()

    def refuse(module: nn.Module, arguments: object) -> None:
        if get_ident() == thread and refused(module):
            raise NotImplementedError(sentence.format(name=type(module).__name__))

    with watching_modules(refuse):
        yield
