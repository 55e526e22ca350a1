"""Notes on errors of torch.func: vmap, grad and other transforms."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from .raised_error import RaisedError, segment_at

_ROWS = {
    r"^vmap: It looks like you're attempting to use a Tensor in some data-dep": "{code} uses a tensor's value in "
    "Python control flow{where}, which vmap cannot follow. Use torch.where(condition, a, b)",
    r"^vmap: It looks like you're calling \.item\(\)": "{code} converts a tensor to a Python number{where}, and under "
    "vmap it has one value per sample. Keep it a tensor, or pass it as an argument with in_dims=None",
    r"^vmap: called random operation": "{code} draws random numbers under vmap{where}. Pass randomness='different' (or "
    "'same') to vmap",
    r"^vmap: inplace arithmetic|^vmap: aten::\w+\(self, \*extra_args\) is not possible": "{code} writes a batched "
    "tensor into one that is not batched{where}. Write it out of place (y = y + x, not y += x), or create y from x "
    "(torch.zeros_like(x))",
    r"^Batch norm got a batched tensor": "{module} updates its running statistics{where}, which vmap cannot share "
    "between samples. Use GroupNorm, call eval(), or torch.func.replace_all_batch_norm_modules_(model)",
    r"^vmap: We do not support batching operators that can output dynamic shape": "{code} returns a shape that "
    "depends on values{where}, which vmap cannot batch. Use torch.where or a mask instead",
    r"must only return Tensors, got type": "the function given to vmap returns a value that is not a tensor{where}. "
    "Return tensors only, or pass out_dims=None for the others",
    r"^vmap: .*same size in the mapped": "the arguments of vmap have different sizes in the mapped "
    "dimension{where}. Pass in_dims=None for those without a batch, or another dimension",
    r"Expected f\(\*args\) to return a scalar [Tt]ensor|Expected f\(\*args\) to return a [Tt]ensor": "the function "
    "given to torch.func.grad must return a scalar tensor{where}. Reduce it with .sum() or .mean(), without .item(); "
    "use jacrev or vjp for several elements",
    r"^You are attempting to call Tensor\.(requires_grad_|retain_grad)\(\)": "{code} is called inside a transform of "
    "torch.func{where}. Leave it out: torch.func.grad differentiates with respect to the first argument by itself",
    r"^backward\(\) called inside a functorch transform": "{code} runs a backward inside a transform of "
    "torch.func{where}. Return the loss from the function and take torch.func.grad or vjp of it",
    r"must override the setup_context": "the custom Function of {code} cannot run under torch.func{where}. Split its "
    "forward: forward(*args) without ctx, and setup_context(ctx, inputs, output)",
    r"^You tried to vmap over": "the custom Function of {code} has no rule for vmap{where}. Set generate_vmap_rule = "
    "True in the class, or define its vmap staticmethod",
    r"don't yet support saved tensor hooks": "{code} uses saved tensor hooks (as checkpoint and save_on_cpu do) "
    "inside a transform of torch.func{where}, which is not supported. Use torch.autograd.grad outside of transforms, "
    "or leave out the checkpoint",
}


def _note(text: str) -> Callable[[RaisedError], str]:
    def note(raised: RaisedError) -> str:
        module = raised.module
        title = raised.title(module) if isinstance(module, nn.Module) else "a batch norm"
        frame, instruction = raised.places[-1][:2] if raised.places else (None, -1)
        code = "" if frame is None else " ".join(segment_at(frame, instruction).split())
        return text.format(code=f"`{code}`" if code else "an operation", where=raised.where, module=title)

    return note


TRANSFORM_NOTES = {message: _note(text) for message, text in _ROWS.items()}
"""The function that writes the note, by a regular expression for the error's text."""
