"""Notes on errors of optimizers, sparse gradients, gradient scalers and DistributedDataParallel."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ....inspector.graph.phrases import joined
from .raised_error import RaisedError
from .source_search import functions_of


def sparse_gradient(raised: RaisedError) -> str | None:
    """Return the note on a sparse gradient that an optimizer, a clipping function or weight decay cannot take."""
    found = [each for each in _parameters(raised) if each.grad is not None and each.grad.layout is not torch.strided]
    if not found:
        return None
    names = joined(
        [raised.parameter_names.get(id(each), f"a parameter of shape {tuple(each.shape)}") for each in found]
    )
    has = "has a sparse gradient" if len(found) == 1 else "have sparse gradients"
    modules = [
        raised.title(module)
        for model in raised.models
        for module in model.modules()
        if getattr(module, "sparse", False) is True
        and any(each is own for own in module.parameters() for each in found)
    ]
    source = f" (from sparse=True of {joined(modules)})" if modules else ""
    takes, remedy = _of_sparse(raised)
    return f"{names} {has}{source}, which {takes}{raised.at}. {remedy}"


def _of_sparse(raised: RaisedError) -> tuple[str, str]:
    optimizer = raised.optimizer
    who = type(optimizer).__name__ if optimizer is not None else "this function"
    dense = "or create the module with sparse=False"
    if "weight_decay" in raised.text or "add(sparse, dense)" in raised.text:
        return (
            f"{who} cannot combine with weight_decay",
            f"Put this parameter in a group with weight_decay=0, {dense}",
        )
    if "SparseCPU" in raised.text or "SparseCUDA" in raised.text:
        return (
            "gradient clipping cannot take",
            f"Clip only the other parameters, {dense}",
        )
    return (
        f"{who} does not support",
        f"Give this parameter to a separate optimizer, torch.optim.SparseAdam, SGD or Adagrad, {dense}",
    )


def dense_gradient(raised: RaisedError) -> str:
    """Return the note on SparseAdam with a dense gradient."""
    found = [each for each in _parameters(raised) if each.grad is not None and not each.grad.is_sparse]
    return (
        f"{_names(raised, found)} has a dense gradient, which SparseAdam does not support{raised.at}. Give it to "
        "torch.optim.Adam, and only embeddings with sparse=True to SparseAdam"
    )


def no_inf_checks(raised: RaisedError) -> str:
    """Return the note on a scaled step none of whose parameters has a gradient."""
    optimizer = raised.optimizer
    held = [] if optimizer is None else _held(optimizer)
    elsewhere = [
        raised.parameter_names[id(each)]
        for model in raised.models
        for each in model.parameters()
        if each.grad is not None and all(each is not own for own in held)
    ]
    who = f"{len(held)} parameters of {type(optimizer).__name__} ({_names(raised, held)})" if held else "parameters"
    others = (
        f"; {joined(elsewhere)} {'has' if len(elsewhere) == 1 else 'have'} one, but the optimizer does not hold "
        f"{'it' if len(elsewhere) == 1 else 'them'}: create the optimizer from model.parameters()"
        if elsewhere
        else "; call scaler.scale(loss).backward() before scaler.step(optimizer), and zero_grad() not in between"
    )
    return f"none of the {who} has a gradient at scaler.step{raised.at}{others}"


def scaler_order(raised: RaisedError) -> str:
    """Return the note on calls of a GradScaler in the wrong order."""
    return (
        f"the scaler is called in another order than unscale_, step, update{raised.at}. In each step call "
        "scaler.scale(loss).backward(), scaler.unscale_(optimizer) at most once, scaler.step(optimizer), and then "
        "scaler.update() once"
    )


def half_parameters(raised: RaisedError) -> str:
    """Return the note on a GradScaler whose parameters are float16 themselves."""
    found = [each for each in _parameters(raised) if each.grad is not None and each.grad.dtype is torch.float16]
    return (
        f"{_names(raised, found)} is float16, so its gradient is too, and GradScaler unscales float32 gradients only"
        f"{raised.at}. Keep the parameters in float32 (no model.half()) and run the forward under torch.autocast"
    )


def not_a_leaf(raised: RaisedError) -> str:
    """Return the note on an optimizer that is given a computed tensor."""
    found = raised.find(lambda each: each.grad_fn is not None)
    name = found[0] if found is not None else "a parameter"
    made = found[1].grad_fn.name() if found is not None and found[1].grad_fn is not None else "an operation"
    return (
        f"{name} was computed by {made}, so it is not a leaf and the optimizer cannot update it{raised.at}. Create "
        "the leaf last: torch.zeros(3, device=device).requires_grad_(), or nn.Parameter(tensor.detach())"
    )


def unfinished_reduction(raised: RaisedError) -> str:
    """Return the note on DDP's "finished reduction": the parameters without a gradient and their modules."""
    wrapper = raised.value_of_kind(DistributedDataParallel)
    if wrapper is None:
        return f"a module of DistributedDataParallel got no gradient in the previous step. {_DDP_UNUSED}"
    trained = [(name, each) for name, each in wrapper.module.named_parameters() if each.requires_grad]
    indices = re.search(r"for rank \d+: ([\d ]+)", raised.text)
    if indices is not None:
        names = [trained[int(each)][0] for each in indices[1].split() if int(each) < len(trained)]
    else:
        names = [name for name, each in trained if each.grad is None]
    modules = dict(wrapper.module.named_modules())
    owners = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    titles = [f"{path} ({type(modules[path]).__name__})" for path in owners if path in modules and path]
    inside = f"; {joined(titles)} {'was' if len(titles) == 1 else 'were'} not used for the loss" if titles else ""
    return (
        f"{joined(names)} got no gradient in the previous step of DistributedDataParallel{inside}{raised.at}. "
        f"{_DDP_UNUSED}"
    )


_DDP_UNUSED = (
    "Use its result in the loss, freeze it (requires_grad_(False)) before DDP wraps the model, or pass "
    "find_unused_parameters=True; ts.find_unused(make_loss, model) finds where the path ends"
)


def ready_twice(raised: RaisedError) -> str:
    """Return the note on DDP's "ready only once": the parameter and its module."""
    named = re.search(r"Parameter at index (\d+)(?: with name (\S+))?", raised.text)
    wrapper = raised.value_of_kind(DistributedDataParallel)
    name = named[2] if named is not None else None
    if name is None and named is not None and wrapper is not None:
        trained = [name for name, each in wrapper.module.named_parameters() if each.requires_grad]
        name = trained[int(named[1])] if int(named[1]) < len(trained) else None
    functions = [] if wrapper is None else functions_of(wrapper.module)
    lines = [line.short for _, function in functions for line in function.calls("checkpoint")]
    checkpoints = f"reentrant checkpoints ({joined(lines)})" if lines else "reentrant checkpoints"
    return (
        f"{name or 'a parameter'} gets its gradient twice in one backward of DistributedDataParallel{raised.at}, "
        f"because {checkpoints} run backwards inside the backward, or two forwards share it. Call checkpoint(..., "
        "use_reentrant=False), or pass static_graph=True to DistributedDataParallel, without find_unused_parameters"
    )


def _parameters(raised: RaisedError) -> list[Tensor]:
    found = [] if raised.optimizer is None else _held(raised.optimizer)
    found += [each for model in raised.models for each in model.parameters()]
    return list({id(each): each for each in found}.values())


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _names(raised: RaisedError, tensors: Sequence[Tensor]) -> str:
    names = [raised.parameter_names.get(id(each), f"a parameter of shape {tuple(each.shape)}") for each in tensors]
    return joined(names) if names else "a parameter"


def assigned_parameter(raised: RaisedError) -> str:
    """Return the note on a parameter that is replaced by a computed tensor."""
    name = raised.local("name", str) or "the parameter"
    module = raised.local("self", nn.Module)
    title = f"{raised.title(module)}.{name}" if module is not None else name
    return (
        f"{title} is a parameter, and a computed tensor is assigned to it{raised.at}. Modify it under "
        f"torch.no_grad() ({name}.copy_(...)), assign nn.Parameter(tensor.detach()), or use torch.nn.utils.parametrize "
        "to compute it in each forward"
    )
