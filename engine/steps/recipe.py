"""What somebody trains with: what makes a model, a batch and an optimizer, and what gives the loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from ...inspector.arguments import a_kind, expect_callable
from ...inspector.graph.source import Source
from ...inspector.graph.words import shape_text
from ..words.phrases import joined

_MORE = 8, 64, 1024  # to what batches are padded

MakeModel = Callable[[], nn.Module] | nn.Module
MakeBatch = Callable[..., Any]
MakeOptimizer = Callable[[list[Parameter]], Optimizer]
LossOf = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The four, checked.

    Attributes:
        make_model: makes the model, or is it.
        make_batch: makes a batch, of a size where it takes one.
        make_optimizer: makes the optimizer of these parameters.
        loss_of: the loss of a model on a batch.
        takes_size: whether `make_batch` takes the size of a batch.
        size: of the batch that is meant, by default what `make_batch` takes where none is said; None: it is called
            without.
        device: whose memory is meant, where that is not the parameters' own.
    """

    make_model: MakeModel
    make_batch: MakeBatch
    make_optimizer: MakeOptimizer
    loss_of: LossOf
    takes_size: bool
    size: int | None
    device: torch.device | None = None

    @classmethod
    def of(
        cls,
        make_model: object,
        make_batch: object,
        make_optimizer: object,
        loss_of: object = None,
        batch_size: int | None = None,
    ) -> Self:
        """The arguments of `ts.fits`.

        Raises:
            TypeError: one of them can't be called as it is to be.
            ValueError: the batch size is none, or `make_batch` takes no size.
        """
        if not isinstance(make_model, nn.Module):
            expect_callable(make_model, 0, "make_model", "a function that makes the model, or a model")
        if not callable(make_batch) or isinstance(make_batch, nn.Module):
            raise TypeError(f"make_batch is {a_kind(make_batch)}; expected a function that makes a batch")
        expect_callable(make_optimizer, 1, "make_optimizer", "a function that takes parameters and makes an optimizer")
        if loss_of is not None:
            expect_callable(loss_of, 2, "loss_of", "a function that takes model and batch and gives the loss")
        size = _size_of(make_batch)
        takes_size = size is not None
        default = None if size is None else size.default
        if batch_size is not None:
            if isinstance(batch_size, bool) or not isinstance(batch_size, int):
                raise TypeError(f"batch_size is {a_kind(batch_size)}; expected a whole number")
            if batch_size < 1:
                raise ValueError(f"batch_size is {batch_size}; expected 1 or more")
            if not takes_size:
                raise ValueError("batch_size is given, and make_batch() takes no size: make_batch(size) would")
        elif size is not None and default is size.empty:
            batch_size = 1
        elif isinstance(default, int) and not isinstance(default, bool):
            batch_size = default
        return cls(
            make_model,  # type: ignore[arg-type]
            make_batch,
            make_optimizer,  # type: ignore[arg-type]
            loss_of or loss_by_default,  # type: ignore[arg-type]
            takes_size,
            batch_size,
        )

    def sized(self, size: int | None) -> Self:
        """The same with batches of another size."""
        return replace(self, size=size)

    def batch(self) -> Any:
        """A batch of the size that is meant."""
        return self.make_batch() if self.size is None else self.make_batch(self.size)

    def refuse_unsized(self, batch: Any) -> None:
        """Refuse a `make_batch` that does not follow the size that it is given, such as `data[:size]` beyond the data.

        A batch need not have its size as a dimension, and may be padded. So it is refused only if the batches of the
        next smaller size and of larger ones (`_MORE`) have the same shapes.

        Raises:
            ValueError: it is one.
        """
        size, shapes = self.size, _shapes_of(batch)
        if not self.takes_size or size is None or size < 1 or any(shape[:1] == (size,) for shape in shapes):
            return
        others = size - 1 or 3, *(size + more for more in _MORE)
        try:
            if any(_shapes_of(self.make_batch(other)) != shapes for other in others):
                return
        except Exception:  # its data end there
            return
        named = joined([shape_text(shape) for shape in dict.fromkeys(shapes)][:3])
        raise ValueError(
            f"make_batch({size}) ({_place_of(self.make_batch)}) returned a batch of shape {named}, and so do "
            f"make_batch({others[0]}) and make_batch({others[-1]}); expected a batch of the given size, such as "
            "torch.randn(size, 64)"
        )


def _shapes_of(batch: Any) -> list[tuple[int, ...]]:
    return [tuple(each.shape) for each in tree_leaves(batch) if isinstance(each, Tensor)]


def _place_of(function: Any) -> str:
    """Return the name of a function and the line where it is written."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    code = code or getattr(type(function).__call__, "__code__", None)
    return f"`{name}`" if code is None else f"`{name}`, {Source(code.co_filename, code.co_firstlineno, '').short}"


def recipe_of(made: object) -> dict[str, object]:
    """What a script's `setup()` returned, as arguments of `ts.fits`: three or four of them, a tuple or a dict.

    Raises:
        ValueError: it is neither.
    """
    names = ("make_model", "make_batch", "make_optimizer", "loss_of")
    if isinstance(made, Mapping):
        if set(names[:3]) <= set(made) <= set(names):
            return {name: made[name] for name in names if name in made}
        raise ValueError(f"setup() returned a dict with {', '.join(map(repr, made))}; expected {', '.join(names)}")
    if isinstance(made, tuple | list) and len(made) in (3, 4):
        return dict(zip(names, made, strict=False))
    raise ValueError(f"setup() returned {a_kind(made)}; expected ({', '.join(names)}) or a dict of these")


def _size_of(make_batch: Callable[..., Any]) -> inspect.Parameter | None:
    """The parameter that is the size of a batch; None: it takes none."""
    try:
        parameters = inspect.signature(make_batch).parameters.values()
    except (TypeError, ValueError):  # written in C
        return None
    by_place = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    missing = [each for each in by_place if each.default is each.empty]
    if len(missing) > 1 or any(each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in parameters):
        raise TypeError("make_batch wants more than the size of a batch; expected make_batch() or make_batch(size)")
    return by_place[0] if by_place else None


def loss_by_default(model: nn.Module, batch: Any) -> Tensor:
    """The model's output, or its `.loss`; a dict is given as `model(**batch)`, a tuple as `model(*batch)`.

    Raises:
        ValueError: the output has no loss of one element.
    """
    if isinstance(batch, Mapping):
        made = model(**batch)
    elif isinstance(batch, tuple | list):
        made = model(*batch)
    else:
        made = model(batch)
    loss = made if isinstance(made, Tensor) else _loss_in(made)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = (
            f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"{a_kind(made)} without a loss"
        )
        raise ValueError(
            f"the model returned {what}, so what the loss is has to be said: "
            "loss_of=lambda model, batch: criterion(model(batch[0]), batch[1])"
        )
    return loss


def _loss_in(made: object) -> object:
    found = getattr(made, "loss", None)
    if found is None and isinstance(made, Mapping):
        found = made.get("loss")
    return found
