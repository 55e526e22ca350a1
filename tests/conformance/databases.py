"""PyTorch's own databases of operators and modules: every sample input of theirs as a program."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from functools import cache
from typing import Any

import numpy
import torch
from program import Forward, Program
from torch import Tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import ModuleInfo, module_db
    from torch.testing._internal.common_utils import SEED
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

_SEED = 0  # of forwards


@cache
def entries() -> dict[str, OpInfo | ModuleInfo]:
    """The databases' differentiable entries, operators first, by name."""
    found: dict[str, OpInfo | ModuleInfo] = {op.full_name: op for op in op_db if op.supports_autograd}
    for module in module_db:
        found[module.name] = module
    return found


def programs(entry: str, limit: int | None) -> Iterator[Program]:
    """An entry's programs.

    Args:
        entry: a name from `entries()`.
        limit: of how many samples of each variant and dtype, spread evenly; None for all.
    """
    info = entries()[entry]
    yield from _of_module(info, limit) if isinstance(info, ModuleInfo) else _of_operator(info, limit)


def _of_operator(op: OpInfo, limit: int | None) -> Iterator[Program]:
    in_place = op.get_inplace() if op.supports_inplace_autograd else None
    for dtype in DTYPES:
        if dtype not in op.backward_dtypes:
            continue
        name = f"{op.full_name} {str(dtype).removeprefix('torch.')}"
        samples = list(enumerate(_samples(op, dtype)))
        yield from _of_samples(name, op, op.get_op(), samples, limit)
        if in_place:
            # A broadcast input cannot store the result; PyTorch's own tests also leave these out.
            fit = [(number, sample) for number, sample in samples if not sample.broadcasts_input]
            yield from _of_samples(f"{name} in-place", op, _on_a_copy(in_place), fit, limit)
            yield from _of_samples(f"{name} in-place on a view", op, _on_a_view(in_place), fit, limit)
        for layout in SPARSE:
            if op.supports_sparse_layout(layout):
                sparse = list(enumerate(_sparse_samples(op, layout, dtype)))
                yield from _of_samples(f"{name} {str(layout).removeprefix('torch.')}", op, op.get_op(), sparse, limit)


def _samples(op: OpInfo, dtype: torch.dtype) -> Iterator[SampleInput]:
    """Return the samples of `op.sample_inputs`, without its search of the stack for a unittest, which is slower than a
    backward."""
    left = iter(op.sample_inputs_func(op, "cpu", dtype, True))
    while True:
        torch.default_generator.manual_seed(SEED)
        random.seed(SEED)
        numpy.random.seed(SEED)
        try:
            yield next(left)
        except StopIteration:
            return


def _of_samples(
    name: str, op: OpInfo, function: Callable[..., Any], samples: Sequence[tuple[int, SampleInput]], limit: int | None
) -> Iterator[Program]:
    for number, sample in _spread(samples, limit):

        def forward() -> Forward:
            first, args, kwargs = _copied((sample.input, sample.args, sample.kwargs))
            torch.default_generator.manual_seed(_SEED)  # torch.manual_seed notes a stack for each accelerator
            # The wrapper makes an input symmetric, say, where the operator takes no other.
            outputs = op.gradcheck_wrapper(function, first, *args, **kwargs)
            return _forward(sample.output_process_fn_grad(outputs), (first, args, kwargs))

        yield Program(f"{name} #{number}", forward)


def _on_a_copy(in_place: Callable[..., Any]) -> Callable[..., Any]:
    return lambda first, *args, **kwargs: in_place(first.clone(), *args, **kwargs)


def _on_a_view(in_place: Callable[..., Any]) -> Callable[..., Any]:
    """The write goes through a view of what is differentiated (CopySlices)."""

    def function(first: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        base = torch.stack((first, first))
        in_place(base.select(0, 1), *args, **kwargs)
        return base

    return function


def _sparse_samples(op: OpInfo, layout: torch.layout, dtype: torch.dtype) -> list[SampleInput]:
    try:
        return list(op.sample_inputs_sparse(layout, "cpu", dtype, requires_grad=True))
    except NotImplementedError:  # supported, but the database has no samples
        return []


def _of_module(info: ModuleInfo, limit: int | None) -> Iterator[Program]:
    for dtype in DTYPES:
        if dtype not in info.supported_dtypes("cpu"):
            continue
        for training in (True, False):
            name = f"{info.name} {str(dtype).removeprefix('torch.')} {'training' if training else 'eval'}"
            torch.default_generator.manual_seed(_SEED)
            samples = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
            for number, sample in _spread(list(enumerate(samples)), limit):
                torch.default_generator.manual_seed(_SEED)
                made = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
                made.to(dtype).train(training)
                if info.is_lazy:
                    with torch.no_grad():
                        made(*sample.forward_input.args, **sample.forward_input.kwargs)

                def forward() -> Forward:
                    inputs = sample.forward_input
                    module, args, kwargs = _copied((made, inputs.args, inputs.kwargs))
                    torch.default_generator.manual_seed(_SEED)
                    return _forward(module(*args, **kwargs), (list(module.parameters()), args, kwargs))

                yield Program(f"{name} #{number}", forward)


def _forward(outputs: object, inputs: object) -> Forward:
    leaves = {id(tensor): tensor for tensor in _tensors(inputs) if tensor.requires_grad}
    return Forward(tuple(tensor for tensor in _tensors(outputs) if tensor.requires_grad), tuple(leaves.values()))


def _copied(nested: Any) -> Any:
    """Return a copy with separate leaves and the same strides. Objects that `deepcopy` refuses are cloned."""
    memo: dict[int, object] = {}
    for tensor in _tensors(nested):
        if not tensor.is_leaf or tensor.layout not in (torch.strided, torch.sparse_coo):
            memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return deepcopy(nested, memo)


def _tensors(nested: object) -> Iterator[Tensor]:
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, dict):
        yield from _tensors(list(nested.values()))
    elif isinstance(nested, list | tuple):
        for each in nested:
            yield from _tensors(each)


def _spread(samples: Sequence[Any], limit: int | None) -> Iterable[Any]:
    """At most `limit` of the samples, as far from each other as from the ends."""
    if limit is None or len(samples) <= limit:
        return samples
    return [samples[(2 * position + 1) * len(samples) // (2 * limit)] for position in range(limit)]
