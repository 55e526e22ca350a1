"""The model of `ts.fits` on fake tensors: made on them, or copied from one that is there."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from ...inspector.arguments import a_kind
from ...inspector.torch_internals.ranks import is_flattened, is_fully_sharded
from ...inspector.torch_internals.tensors import View, computes_itself, has_view, is_fake, storage_of, without_bytes
from ..prediction.fake_kernels import FakeKernels
from ..words.sizes import size_text
from .recipe import Recipe


def model_on_fakes(recipe: Recipe, fakes: FakeKernels) -> nn.Module:
    """The recipe's model, made on fakes, which are open, or what stands in for one that is there.

    Raises:
        TypeError: `make_model` gave none.
        NotImplementedError: a tensor of it computes by itself.
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
    """Lets `copy.deepcopy` copy buffers on fakes (a teacher, an average): torch's own shares storages, fakes refuse."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not Tensor.__deepcopy__:
            return function(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]


def _refuse_wrappers(model: object) -> None:
    """`refuse_wrapper` for a model and all in it."""
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        refuse_wrapper(module, path=path)


@contextmanager
def _refusing_ddp() -> Iterator[None]:
    """Explains the internal error with which DistributedDataParallel ends where it is made of fake tensors."""
    try:
        yield
    except RuntimeError as error:
        code = DistributedDataParallel.__init__.__code__
        if not any(frame.f_code is code for frame, _ in walk_tb(error.__traceback__)):
            raise
        raise NotImplementedError(
            "ts.fits can't make DistributedDataParallel of fake tensors. Let make_model give the model itself; the "
            "buckets take as much as the gradients more"
        ) from error


def refuse_wrapper(module: nn.Module, arguments: object = None, path: str = "") -> None:
    """Refuses a module that runs its parts on several devices or ranks: nothing of that works on fakes.

    Raises:
        NotImplementedError: it is one.
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
    """Whether any parameter or buffer has memory already."""
    return any(not (is_lazy(each) or without_bytes(each)) for each in chain(model.parameters(), model.buffers()))


def stand_in(model: nn.Module) -> nn.Module:
    """A copy of a model on fake tensors, which are open; the model is left alone, and nothing of it allocated again.

    Raises:
        NotImplementedError: a tensor of it computes by itself.
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
            f"{name} is a tensor of another kind ({kind}), and ts.fits copies models of dense tensors alone; measure a "
            "step with ts.profile_step"
        )
    if storage is None or (computes_itself(tensor) and not is_fake(tensor)):
        raise NotImplementedError(
            f"{name} is {a_kind(tensor)}, which computes by itself: give a function that makes it"
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
