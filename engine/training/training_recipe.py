"""The parts of a training step: model, batch, optimizer and loss, also on fake tensors."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from traceback import extract_tb, walk_tb
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...inspector.graph.phrases import joined
from ...inspector.graph.source_lines import Source, innermost_user_line
from ...inspector.text.sizes_and_counts import shape_text, size_text
from ...inspector.torch_private.distributed import is_flattened, is_fully_sharded
from ...inspector.torch_private.tensors import View, computes_itself, has_view, is_fake, storage_of, without_bytes
from ...inspector.validation import a_kind, expect_callable
from ..memory.kernel_workspaces import FakeKernels

_MORE = 8, 64, 1024  # sizes to which batches may be padded

MakeModel = Callable[[], nn.Module] | nn.Module
MakeBatch = Callable[..., Any]
MakeOptimizer = Callable[[list[Parameter]], Optimizer]
LossOf = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The functions that make up a training step, checked.

    Attributes:
        make_model: a function that returns the model, or the model.
        make_batch: a function that returns a batch; it may take the batch size.
        make_optimizer: a function from a list of parameters to an optimizer.
        loss_of: a function from model and batch to the loss.
        takes_size: whether `make_batch` takes the batch size.
        size: the requested batch size, by default that of `make_batch`; None: `make_batch` takes no size.
        device: the device of the memory; None: that of the parameters.
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
        """Return the recipe of the arguments of `ts.fits`.

        Raises:
            TypeError: an argument is not a function of the expected arguments.
            ValueError: the batch size is invalid, or `make_batch` takes none.
        """
        if not isinstance(make_model, nn.Module):
            expect_callable(make_model, 0, "make_model", "a function that makes the model, or a model")
        if not callable(make_batch) or isinstance(make_batch, nn.Module):
            raise TypeError(f"make_batch is {a_kind(make_batch)}; expected a function that makes a batch")
        expect_callable(make_optimizer, 1, "make_optimizer", "a function that takes parameters and makes an optimizer")
        if loss_of is not None:
            expect_callable(loss_of, 2, "loss_of", "a function of the model and the batch that returns the loss")
        size = _size_of(make_batch)
        takes_size = size is not None
        default = None if size is None else size.default
        if batch_size is not None:
            if isinstance(batch_size, bool) or not isinstance(batch_size, int):
                raise TypeError(f"batch_size is {a_kind(batch_size)}; expected a whole number")
            if batch_size < 1:
                raise ValueError(f"batch_size is {batch_size}; expected 1 or more")
            if not takes_size:
                raise ValueError("batch_size was passed, but make_batch() takes no size; expected make_batch(size)")
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
        """Return the recipe with another batch size."""
        return replace(self, size=size)

    def batch(self) -> Any:
        """Return a batch of the requested size."""
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
        except Exception:  # the data may end before this size
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


def recipe_of(made: object, function: str) -> dict[str, object]:
    """Return the result of a script's function as arguments of `ts.fits`. It is a tuple of three or four, or a dict.

    Raises:
        ValueError: it is neither.
    """
    names = ("make_model", "make_batch", "make_optimizer", "loss_of")
    if isinstance(made, Mapping):
        if set(names[:3]) <= set(made) <= set(names):
            return {name: made[name] for name in names if name in made}
        raise ValueError(f"{function}() returned a dict with {', '.join(map(repr, made))}; expected {', '.join(names)}")
    if isinstance(made, tuple | list) and len(made) in (3, 4):
        return dict(zip(names, made, strict=False))
    of_loss = "; a function that returns a loss needs --limit in place of --memory" if isinstance(made, Tensor) else ""
    raise ValueError(f"{function}() returned {a_kind(made)}; expected ({', '.join(names)}) or a dict of these{of_loss}")


def _size_of(make_batch: Callable[..., Any]) -> inspect.Parameter | None:
    """Return the parameter of `make_batch` that takes the batch size; None if there is none."""
    try:
        parameters = inspect.signature(make_batch).parameters.values()
    except (TypeError, ValueError):  # implemented in C, without a signature
        return None
    by_place = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    missing = [each for each in by_place if each.default is each.empty]
    if len(missing) > 1 or any(each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in parameters):
        raise TypeError(
            "make_batch requires arguments besides the batch size; expected make_batch() or make_batch(size)"
        )
    return by_place[0] if by_place else None


def loss_by_default(model: nn.Module, batch: Any) -> Tensor:
    """Return the model's output, or its `.loss`. A dict is passed as `model(**batch)`, a tuple as `model(*batch)`.

    Raises:
        ValueError: the output has no loss of one element.
    """
    if isinstance(batch, Mapping):
        made = model(**batch)
    elif isinstance(batch, tuple | list):
        try:
            made = model(*batch)
        except TypeError:
            _expect_parts(model, batch)
            raise
    else:
        made = model(batch)
    loss = made if isinstance(made, Tensor) else _loss_in(made)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = (
            f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"{a_kind(made)} without a loss"
        )
        raise ValueError(
            f"the model returned {what}, so loss_of is needed, for example "
            "lambda model, batch: criterion(model(batch[0]), batch[1])"
        )
    return loss


def _expect_parts(model: nn.Module, batch: Sequence[Any]) -> None:
    """Raise ValueError if a model cannot be called with a batch's parts, such as input and target.

    Python's own error would count `self`, and not mention `loss_of`.
    """
    try:
        inspect.signature(model.forward).bind(*batch)
    except ValueError:  # implemented in C++, without a signature
        return
    except TypeError as error:
        raise ValueError(
            f"{type(model).__name__}.forward() cannot be called with the {len(batch)} parts of a batch ({error}), so "
            "loss_of is needed, for example lambda model, batch: criterion(model(batch[0]), batch[1])"
        ) from None


def _loss_in(made: object) -> object:
    found = getattr(made, "loss", None)
    if found is None and isinstance(made, Mapping):
        found = made.get("loss")
    return found


def model_on_fakes(recipe: Recipe, fakes: FakeKernels) -> nn.Module:
    """Return the recipe's model on fake tensors. An existing model is copied. Call it inside the fake mode.

    Raises:
        TypeError: `make_model` did not return a module.
        NotImplementedError: a tensor's subclass has its own operations.
    """
    made = recipe.make_model
    _refuse_wrappers(made)
    with fakes.making(), _refusing_ddp(), _CopiesOfFakes():
        model = made if isinstance(made, nn.Module) else made()
        if isinstance(model, nn.Module) and (model is made or _is_there(model)):
            model = stand_in(model)
    if not isinstance(model, nn.Module):
        raise TypeError(f"make_model() returned {a_kind(model)}; expected a torch.nn.Module")
    _refuse_wrappers(model)
    return model


class _CopiesOfFakes(TorchFunctionMode):
    """Makes `copy.deepcopy` copy fake buffers (a teacher, an average); torch's own works on storages and fails for
    fakes.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not Tensor.__deepcopy__:
            return function(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]


def _refuse_wrappers(model: object) -> None:
    """Call `refuse_wrapper` for a model and its submodules."""
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        refuse_wrapper(module, path=path)


@contextmanager
def _refusing_ddp() -> Iterator[None]:
    """Replace the internal error that DistributedDataParallel raises for fake tensors by an explanation."""
    try:
        yield
    except RuntimeError as error:
        code = DistributedDataParallel.__init__.__code__
        if not any(frame.f_code is code for frame, _ in walk_tb(error.__traceback__)):
            raise
        raise NotImplementedError(
            "ts.fits cannot create DistributedDataParallel from fake tensors. Return the model itself from make_model; "
            "the buckets need as much memory as the gradients, in addition"
        ) from error


def refuse_wrapper(module: nn.Module, arguments: object = None, path: str = "") -> None:
    """Raise if a module runs on several devices or ranks, which fake tensors do not support.

    Raises:
        NotImplementedError: it does.
    """
    name = f"{type(module).__name__}{f' ({path})' if path else ''}"
    if isinstance(module, DistributedDataParallel):
        grads = size_text(sum(each.nbytes for each in module.parameters() if each.requires_grad))
        raise NotImplementedError(
            f"ts.fits can't run {name} on fake tensors. Pass its .module; its buckets take {grads} more, as much as "
            "the gradients, unless gradient_as_bucket_view=True makes the gradients views of them"
        )
    if isinstance(module, nn.DataParallel):
        raise NotImplementedError(
            f"ts.fits can't run {name} on fake tensors. Pass its .module, with the part of the batch that one device "
            "gets"
        )
    if is_flattened(module) or is_fully_sharded(module):
        raise NotImplementedError(
            f"ts.fits can't run {name}, whose parameters are sharded over ranks, on fake tensors. Pass the model "
            "without FSDP: that predicts one rank which holds all of it"
        )


def _is_there(model: nn.Module) -> bool:
    """True if any parameter or buffer has memory already."""
    return any(not (is_lazy(each) or without_bytes(each)) for each in chain(model.parameters(), model.buffers()))


def stand_in(model: nn.Module) -> nn.Module:
    """Return a copy of a model on fake tensors, allocating nothing. The model is left unchanged.

    Raises:
        NotImplementedError: a tensor's subclass has its own operations.
    """
    wholes: dict[int, Tensor] = {}
    memo: dict[int, Any] = {}
    for module in model.modules():
        for name, tensor in chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False)):
            memo[id(tensor)] = _alike(tensor, f"{type(module).__name__}.{name}", wholes)
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                memo[id(value)] = _alike(value, f"{type(module).__name__}.{name}", wholes)
    return copy.deepcopy(model, memo)


def _alike(tensor: Tensor, name: str, wholes: dict[int, Tensor]) -> Tensor:
    storage = storage_of(tensor)
    if not (computes_itself(tensor) or has_view(tensor)):
        layout = str(tensor.layout).removeprefix("torch.")
        kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else layout
        raise NotImplementedError(
            f"{name} is a {kind} tensor, and ts.fits copies only models of dense tensors; measure a step with "
            "ts.profile_step"
        )
    if storage is None or (computes_itself(tensor) and not is_fake(tensor)):
        raise NotImplementedError(
            f"{name} is {a_kind(tensor)}, whose class has its own operations; pass a function that returns the "
            "model instead"
        )
    view = View.of(tensor)
    whole = wholes.get(storage.address)
    if whole is None or whole.dtype is not tensor.dtype:
        size = -(-storage.nbytes // tensor.element_size())
        whole = wholes[storage.address] = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
    made = whole.as_strided(view.shape, view.strides, view.offset).detach()
    if isinstance(tensor, Parameter):
        return Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def numbers_sentence(error: Exception, place: str, verb: str = "ts.fits") -> str:
    """Return the sentence about a value that fake tensors lack, with its line; `place`: of a backward's operation."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    line = innermost_user_line(frames)
    where = "" if line is None or place else f"{line.short}: "
    operator = str(error).removeprefix("aten.").partition(".")[0]
    what = (
        "the value of a tensor, as .item() does"
        if "scalar_dense" in operator
        else f"the number of elements that {operator} finds"
    )
    if any(Path(frame.filename).is_relative_to(_DATA) for frame in frames):
        return (
            f"{where}a DataLoader reads random numbers, and fake tensors have no values. For {verb}, make the batch "
            "without one, such as torch.randn(32, 784) of the same shape and dtype"
        )
    return (
        f"{where}{place or 'the program'} needs {what}, and fake tensors have no values. Leave it out for "
        f"{verb}, or measure a step that fits with ts.profile"
    )


def unfakeable_sentence(error: Exception, operation: str, verb: str = "ts.fits") -> str:
    """Return the sentence about an operation that does not run on fake tensors, with its line."""
    frames = extract_tb(error.__traceback__)
    line = innermost_user_line(frame for frame in frames if not _is_ours(frame.filename))
    steps = any(Path(frame.filename).is_relative_to(_OPTIMIZERS) for frame in frames)
    where = "in the optimizer's step: " if steps else "" if line is None else f"{line.short}: "
    return (
        f"{where}{verb} trains on fake tensors, on which {operation} does not run; few operations on sparse, nested, "
        f"quantized and MKL-DNN tensors do, and torch.cond and similar ones do not. Replace the operation for {verb} "
        "(for nn.Embedding, pass sparse=False), or measure a step with ts.profile_step"
    )


_OPTIMIZERS = Path(torch.optim.__file__).parent
_DATA = Path(torch.utils.data.__file__).parent


def _is_ours(filename: str) -> bool:
    return any(Path(filename).is_relative_to(folder) for folder in _OURS)


_OURS = Path(__file__).parents[1], Path(__file__).parents[2] / "inspector"
