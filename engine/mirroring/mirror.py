"""`with ts.mirror(plan): loss = model(x)`: saved tensors are let go of, and made again when the backward asks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from ...inspector.arguments import a_kind
from ...inspector.capturing.opened import Opened, refuse_disabled_hooks
from ...inspector.graph.words import counted
from ...inspector.torch_internals.compiled import compiled_code_refused
from ..words.sizes import size_text
from .calls import PURPOSE, followed
from .plan import MirrorPlan, PlannedStorage
from .watch import MirrorTally, MirrorWatch, banned_sentence, state_of


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """What a mirrored forward and its backward came to, so far.

    Attributes:
        forwards: how many forwards ran as planned, to the plan's end or to that of the `with` block.
        dropped: how many storages that nodes save were let go of; dropped_bytes: their sizes.
        replayed: how many were made again, those on the way included; replayed_bytes: their sizes.
        operations: how many operations that took; seconds: how long, on the host.
        banned: the storages which the plan drops and which are kept, with the reason: making them again failed, or gave
            something else.
        notes: what else did not go as planned, in sentences.
    """

    forwards: int
    dropped: int
    dropped_bytes: int
    replayed: int
    replayed_bytes: int
    operations: int
    seconds: float
    banned: tuple[tuple[PlannedStorage, str], ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        said = [
            f"{_count(self.dropped, 'saved storage')} let go of, {size_text(self.dropped_bytes)}.",
            f"{_count(self.replayed, 'storage')} made again, {size_text(self.replayed_bytes)}, by "
            f"{counted(self.operations, 'operation')} in {1e3 * self.seconds:.1f} ms.",
        ]
        if self.banned:
            said.append(f"{banned_sentence(self.banned)}.")
        return "\n".join([*said, *self.notes])


def _count(number: int, what: str) -> str:
    return f"1 {what} was" if number == 1 else f"{number:,} {what}s were"


class mirror:
    """Runs forwards by a plan: what it drops is let go of, and made again when the backward needs it.

    Gradients are the same bits as without, those of dropout included, and so is what the forward writes (the running
    statistics of a batch-norm are updated once). The backward is PyTorch's own, inside the `with` block or after it,
    and so are optimiser, autocast, GradScaler, DistributedDataParallel, gradient accumulation and the user's
    checkpoints.

    The first forward under a plan keeps all, as without it; at its end each storage that the plan drops is made again,
    compared with what it was, and let go of if it is the same to the bit. If not, as with data that was written behind
    torch's back, it is kept from then on (`report.banned`), with a warning.

    A storage is made again of what the forward had then. If that was modified in place meanwhile, the backward raises
    as PyTorch does for saved tensors.

    Args:
        plan: of `ts.plan_mirror`, or `MirrorPlan.load`. Forwards of other sizes may use it, too: what it drops is made
            again from their own operations. If its first forward runs other operations than were planned for, or one of
            another model does, it is refused. If a later one of the same model does, all is kept from there on, with a
            warning. With a plan that drops nothing, of a model that is left alone, the block does nothing and takes no
            time.

    Attributes:
        plan: the plan.

    Raises:
        TypeError: it is given no plan.
        ValueError: in the forward: it is not the one that was planned for.
        NotImplementedError: in the forward: it calls what torch.compile has compiled, or disables saved_tensors_hooks.

    The first forward under a plan is followed operation by operation; later blocks look into those calls alone in which
    the plan has something to do. So open a block for each forward: more than one in a block take longer.

    Known limitations: only the thread that opens it is mirrored. torch.func.grad and its like, which disable
    `saved_tensors_hooks`, are refused by name; hooks which the user opens around the block pack nothing of it. An
    nn.MultiheadAttention or nn.TransformerEncoder that would take its fast path, in eval mode and without gradients,
    takes the other one, as under any TorchFunctionMode: what it gives differs by rounding. What PyTorch does not count
    as modified is not noticed between forward and backward: tensors changed through .data, running statistics of a
    batch-norm that ran in eval mode and then trains; nor are other settings for the precision of products.
    """

    def __init__(self, plan: MirrorPlan) -> None:
        if not isinstance(plan, MirrorPlan):
            raise TypeError(f"ts.mirror takes a plan, such as ts.plan_mirror makes, not {a_kind(plan)}")
        self.plan = plan
        self._idle = not plan.dropped
        self._tally = MirrorTally()
        self._opened: Opened | None = None

    def __repr__(self) -> str:
        return f"<mirror: {self.plan}>"

    def __enter__(self) -> mirror:
        if self._opened is not None:
            raise RuntimeError("this mirror is open already; make another one with ts.mirror(plan)")
        if self._idle:
            return self
        watch, contexts = followed(state_of(self.plan), self._tally)
        self._opened = Opened(self, partial(_enter, contexts, watch))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._idle:
            return
        opened, self._opened = self._opened, None
        assert opened is not None, "it was not entered"
        opened.close(kind, error, traceback)

    @property
    def report(self) -> MirrorReport:
        """What came of it so far, the replays of backwards after the `with` block included."""
        tally, state = self._tally, state_of(self.plan)
        return MirrorReport(
            tally.forwards,
            tally.dropped,
            tally.dropped_bytes,
            tally.storages,
            tally.nbytes,
            tally.operations,
            tally.seconds,
            state.banned_storages(state.banned),
            tuple(tally.notes),
        )


def _enter(contexts: Iterable[AbstractContextManager[object]], watch: MirrorWatch, stack: ExitStack) -> None:
    stack.push(lambda kind, error, traceback: watch.close(raised=error is not None))
    refuse_disabled_hooks(PURPOSE)
    stack.enter_context(compiled_code_refused("it can't be mirrored"))
    for each in contexts:
        stack.enter_context(each)
