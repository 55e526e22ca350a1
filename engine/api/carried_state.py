"""Python state that a program carries from one run to the next: restored if possible, otherwise reported."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from math import isclose, isnan, sqrt
from types import FunctionType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...inspector.garbage_collector import all_objects
from ...inspector.graph.source_lines import Source, warn
from ...inspector.torch_private.compiled import runs_uncompiled
from ...inspector.torch_private.distributed import is_fully_sharded
from ...inspector.torch_private.tensors import computes_itself, is_leaf, without_bytes
from ...inspector.torch_private.thread_state import unobserved, without_torch_function
from ..execution.find_hooks import subclasses
from ..execution.undo_python_state import IteratorProgress, Unseen, reach
from ..execution.undo_snapshots import MISSING, ByKey, OfLeaf, Place, Rebound
from .make_loss import for_all

_MOST = 20_000  # objects that code refers to; comparing them again takes about 20 ms
_MOST_OF_OPTIMIZERS = 1_000_000  # objects in optimizers, whose state has about four per parameter
_KEPT_ELSEWHERE = "_parameters", "_buffers"  # module attributes restored by `AsFound`

_MOVED_ON = (
    "{what}. {verb} runs the program several times and cannot restore this, so it stays as the last run left it. "
    "Move what changes out of the function, such as the batch: batch = next(batches), then lambda: loss_of(batch)"
)


class CarriedState:
    """The Python state of a program at the start.

    It contains the attributes of all modules, optimizers, learning rate schedulers and gradient scalers, with the lists
    and dicts in them (an optimizer's state and groups, hooks in their order); the attributes and hooks of leaves, and
    whether tensors require grad; and what `make_loss` and those hooks refer to: closures, globals by name, objects,
    lists, dicts, sets, arrays, random number generators (see `HookState`).

    State that cannot be restored is reported once: an iterator that was advanced, or a loss that differs from the one
    before.

    Known limitations: if code refers to more than `_MOST` objects, only the nearest are recorded. State in C++, in
    files, and in objects of libraries is not restored, and is detected only by a different loss. Lazy modules stay
    materialized.

    Args:
        make_loss: runs the forward.
        verb: the verb that runs it, for messages.
        refuses: whether such a report is an error; otherwise it is a warning, as the verb's result is right all the
            same.
        also: other functions of the program that the verb runs.

    Attributes:
        tensors: all tensors of the process, found in the same pass over all objects, which takes 0.1 s for a million.
    """

    def __init__(
        self, make_loss: Callable[..., Any], verb: str, refuses: bool = False, also: Sequence[object] = ()
    ) -> None:
        self._make_loss = make_loss
        self._verb = verb
        self._refuses = refuses
        self._places: list[tuple[Place, Any]] = []
        self._empty: list[dict[Any, Any]] = []  # empty dicts of modules and leaves, most of which have no hooks
        self._iterators: list[tuple[IteratorProgress, str, FunctionType | None]] = []
        self.tensors: list[ref[Tensor]] = []
        self._flags: list[tuple[ref[Tensor], bool]] = []  # leaves, and whether they require grad
        self._losses: dict[bool, float] = {}
        self._compared: set[bool] = set()
        self._has_changed = False
        self._is_put_back = True
        self._moved_on: str | None = None
        self._is_reported = False
        self._left_alone: set[int] = set()  # dicts that are not restored, by id()
        optimizers, kept = self._of_process()
        self._note(optimizers, _MOST_OF_OPTIMIZERS)
        functions: list[Any] = [make_loss]
        if isinstance(make_loss, FunctionType) and (make_loss.__module__ or "").startswith("tapescope"):
            functions = [cell.cell_contents for cell in make_loss.__closure__ or ()]  # the user's, which it calls
        self._note([*functions, *also, *kept], _MOST)

    def make_loss(self) -> Any:
        """Run the forward; compare the losses of the first two runs that start from the same state."""
        finds_the_same, self._is_put_back = self._is_put_back, False
        torch.clear_autocast_cache()  # an autocast may be open around all runs
        made = self._make_loss()
        if finds_the_same and isinstance(made, Tensor) and self._moved_on is None:
            self._compare(made)  # must not allocate, since memory may be measured
        return made

    def made_once(self) -> list[Rebound]:
        """Return the tensors that the forward creates at its first call and keeps, such as a mask.

        They have no graph, nothing was in their place before, and a second run does not change them. Runs the forward
        twice if it changes anything; the caller restores what that has changed.
        """
        if not self._has_changed:
            return []
        self._make_loss()
        made = [(place, change) for place, before in self._kept() if (change := place.change(before)) is not None]
        kept = [place.read() for place, _ in made]
        self._make_loss()
        found = []
        for (place, change), before in zip(made, kept, strict=True):
            again = place.change(before)
            moved = [each[0] for each in again.changed] if isinstance(again, Rebound) else []
            if isinstance(change, Rebound) and before.keys() >= set(moved):  # otherwise it grows with each run
                once = [each for each in change.changed if _is_made(*each[1:]) and each[0] not in moved]
                found.append(Rebound(change.kept, once, (), ()))
        return found

    def put_back(self) -> None:
        """Restore the state that the runs have changed."""
        steps: list[Callable[[], object]] = [
            lambda: for_all(self._kept(), self._undo),
            lambda: for_all(self._flags, _put_requires_grad),
        ]
        with unobserved():
            for_all(steps, lambda step: step())
        self._is_put_back = True
        if self._moved_on is None:
            self._moved_on = self._advanced()

    def tell(self) -> None:
        """Report state that could not be restored.

        Raises:
            RuntimeError: something could not be restored, and `refuses` was set.
        """
        if self._moved_on is None or self._is_reported:
            return
        self._is_reported = True
        if self._refuses:
            raise RuntimeError(self._text)
        warn(self._text)

    def explain(self, error: BaseException) -> None:
        """Add a note about state that could not be restored to an error, unless it was reported."""
        if self._moved_on is None:
            self._moved_on = self._advanced()
        if self._moved_on is not None and not self._is_reported:
            self._is_reported = True
            error.add_note(f"tapescope: {self._text}")

    @property
    def _text(self) -> str:
        return _MOVED_ON.format(what=self._moved_on, verb=self._verb)

    def _undo(self, kept: tuple[Place, Any]) -> None:
        place, before = kept
        change = place.change(before)
        if change is not None:
            self._has_changed = True
            change.undo()

    def _note(self, code: Iterable[Any], most: int) -> None:
        for found, name, owner in reach(code, most, skips_large=True):
            if isinstance(found, IteratorProgress):
                self._iterators.append((found, name, owner))
            elif not isinstance(found, Tensor | Unseen):
                self._note_place(found)

    def _kept(self) -> list[tuple[Place, Any]]:
        """Return the places and their original values, including dicts that were empty and no longer are."""
        return [*self._places, *((ByKey(each), {}) for each in filter(None, self._empty))]

    def _note_place(self, place: Place) -> None:
        if not isinstance(place, ByKey) or id(place.kept) not in self._left_alone:
            self._places.append((place, place.read()))

    def _of_process(self) -> tuple[list[Any], list[Any]]:
        """Return the process's optimizers, schedulers and scalers, and the objects that modules and leaves refer to."""
        optimizers: list[Any] = []
        kept: list[Any] = []
        holders = set().union(*map(subclasses, (Optimizer, LRScheduler, GradScaler)))
        modules, tensors = subclasses(nn.Module), subclasses(Tensor)
        known = holders | modules | tensors
        with without_torch_function(), all_objects() as objects:
            for each in compress(objects, map(known.__contains__, map(type, objects))):
                if type(each) in holders:
                    optimizers.append(vars(each))
                elif type(each) in modules:
                    kept += self._of_module(each)
                else:
                    self.tensors.append(ref(each))
                    if is_leaf(each):
                        kept += self._of_leaf(each)
        return optimizers, kept

    def _of_leaf(self, leaf: Tensor) -> Iterator[Any]:
        self._flags.append((ref(leaf), leaf.requires_grad))
        if leaf.requires_grad or isinstance(leaf, nn.Parameter):
            hooks = OfLeaf(leaf)
            self._note_place(ByKey(hooks))
            self._note_dict(vars(leaf))
            yield from (found for found in (*vars(leaf).values(), *hooks.values()) if found is not None)

    def _of_module(self, module: nn.Module) -> Iterator[Any]:
        is_left_alone = isinstance(module, torch.jit.ScriptModule | DistributedDataParallel) or is_fully_sharded(module)
        if isinstance(module, LazyModuleMixin):
            tensors = (*module._parameters.values(), *module._buffers.values())
            is_left_alone = any(each is not None and is_lazy(each) for each in tensors)
        if is_left_alone:  # its state is restored elsewhere, or cannot be restored
            if isinstance(module, DistributedDataParallel):  # whether the next forward broadcasts buffers
                self._note_place(ByKey(vars(module), ("require_forward_param_sync",)))
            self._left_alone.update(map(id, (vars(module), *vars(module).values())))
            return
        self._note_place(ByKey(vars(module)))
        for name, value in vars(module).items():
            if name in _KEPT_ELSEWHERE or value is None or isinstance(value, bool | int | float | str | Tensor):
                continue
            if type(value) in (dict, OrderedDict) and (not value or name == "_modules"):
                self._note_dict(value)
            else:
                yield value

    def _note_dict(self, found: dict[Any, Any]) -> None:
        if found:
            self._note_place(ByKey(found))
        elif id(found) not in self._left_alone:
            self._empty.append(found)

    def _compare(self, loss: Tensor) -> None:
        """Compare the loss with the one before."""
        where = runs_uncompiled()  # compiled code draws other random numbers and rounds differently
        if where in self._compared or without_bytes(loss) or computes_itself(loss):
            return
        if loss.is_nested or loss.numel() != 1:  # the verb will refuse it
            return
        with unobserved():
            value = float(loss.real)
        if where not in self._losses:
            self._losses[where] = value
            return
        known = self._losses[where]
        self._compared.add(where)
        eps = torch.finfo(loss.dtype).eps if loss.is_floating_point() or loss.is_complex() else 0.0
        if not (isclose(value, known, rel_tol=sqrt(eps), abs_tol=eps) or (isnan(value) and isnan(known))):
            self._moved_on = (
                f"make_loss() returned {known:.6g} at first and {value:.6g} when run again, with the same parameters "
                "and random numbers: it depends on state that it changes"
            )

    def _advanced(self) -> str | None:
        """Return the sentence about an iterator that a run has advanced; None if none was."""
        for before, name, owner in self._iterators:
            if before.is_another:
                kind, by = type(before.iterator).__name__, "make_loss()"
                if owner is not None:
                    at = Source(owner.__code__.co_filename, owner.__code__.co_firstlineno, "").short
                    by = f"`{owner.__qualname__}` ({at})"
                return f"{by} advanced `{name}`, an iterator ({kind}), which cannot be rewound"
        return None


def _put_requires_grad(kept: tuple[ref[Tensor], bool]) -> None:
    tensor, requires_grad = kept[0](), kept[1]
    if tensor is None or tensor.requires_grad is requires_grad:
        return
    if not is_leaf(tensor) and not tensor._is_view():  # an in-place operation gave it a graph
        tensor.detach_()
    if is_leaf(tensor):
        tensor.requires_grad_(requires_grad)


def _is_made(before: object, after: object) -> bool:
    there_was = before is not None and before is not MISSING
    return isinstance(after, Tensor) and not after.requires_grad and not there_was
