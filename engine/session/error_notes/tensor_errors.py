"""Notes on PyTorch's errors about leaves, views, in-place operations, inference tensors and copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ....inspector.graph.frame_variables import variables_of
from ....inspector.graph.phrases import joined
from ....inspector.torch_private.hooks import node_hooks
from .raised_error import RaisedError, segment_at

Note = Callable[[RaisedError], "str | None"]


def about_tensor(wanted: Callable[[Tensor], bool], text: str) -> Note:
    """Return a note about the first operand that `wanted` accepts.

    Args:
        text: the note, with `{it}` for the tensor's name, `{where}` for ` at file:line in module`, `{code}` for the
            failing expression, `{made}` for the tensor's grad_fn.
    """

    def note(raised: RaisedError) -> str:
        found = raised.find(wanted)
        name, tensor = ("a tensor", None) if found is None else found
        made = tensor.grad_fn.name() if tensor is not None and tensor.grad_fn is not None else "an operation"
        return text.format(it=name, where=raised.where, code=_code(raised), made=made)

    return note


def _code(raised: RaisedError) -> str:
    if not raised.places:
        return "an in-place operation"
    frame, instruction, _ = raised.places[-1]
    text = " ".join(segment_at(frame, instruction).split())
    return f"`{text}`" if text else "an in-place operation"


def is_leaf_with_grad(tensor: Tensor) -> bool:
    return tensor.is_leaf and tensor.requires_grad


def is_computed(tensor: Tensor) -> bool:
    return tensor.grad_fn is not None


def requires_no_grad(tensor: Tensor) -> bool:
    return not tensor.requires_grad


def is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def requires_grad(tensor: Tensor) -> bool:
    return tensor.requires_grad


def _is_view_of_leaf(tensor: Tensor) -> bool:
    return tensor._base is not None and is_leaf_with_grad(tensor._base)


def view_of_leaf(raised: RaisedError) -> str:
    """Return the note on an in-place write to a view of a parameter."""
    found = raised.find(_is_view_of_leaf) or raised.find(is_leaf_with_grad)
    name, tensor = found or ("a tensor", None)
    base = None if tensor is None else tensor._base
    leaf = name if base is None else raised.name_of(base) or "a leaf"
    of = f"{name} is a view of {leaf}, which" if base is not None and leaf != name else f"{leaf}"
    return (
        f"{of} is a leaf that requires grad, and {_code(raised)} modifies a view of it in place{raised.where}. Do it "
        "inside `with torch.no_grad():` if autograd should not track it; else modify a copy: clone() it first"
    )


def modified_view(raised: RaisedError) -> str:
    """Return the note on an in-place write to a view that autograd cannot track."""
    if "BackwardHookFunction" in raised.text:
        return hook_and_in_place(raised)
    found = raised.find(lambda each: each.grad_fn is not None and each._base is not None)
    name = found[0] if found is not None else "a tensor"
    if "custom Function" in raised.text:
        why, remedy = "a view that a custom Function returned", "clone() the Function's result, or write out of place"
    elif "multiple views" in raised.text:
        why = "one of several views that one call returned (unbind, split, chunk)"
        remedy = f"write out of place ({name} = {name} + 1, not {name} += 1), or clone() it first"
    else:
        why = "a view that was created under no_grad or inference_mode"
        remedy = "create the view outside of that block, or clone() it"
    return (
        f"{name} is {why}, and {_code(raised)} modifies it, its base or another view in place{raised.where}; {remedy}"
    )


def hook_and_in_place(raised: RaisedError) -> str:
    """Return the note on a full backward hook whose tensor is then modified in place: both modules and the remedy."""
    found = raised.find(lambda each: _hooked_module(each) is not None)
    hooked = None if found is None else _hooked_module(found[1])
    writes = raised.module
    who = (
        f"{raised.title(hooked)} has a full backward hook"
        if hooked is not None
        else "a module has a full backward hook"
    )
    if writes is not None and getattr(writes, "inplace", False) is True:
        if writes is hooked:
            return (
                f"{raised.title(writes)} has a full backward hook and works in place{raised.at}, which excludes each "
                "other. Set inplace=False, or register the hook on another module"
            )
        return (
            f"{who}, and {raised.title(writes)} then modifies its output in place{raised.at}. Set inplace=False in "
            f"{raised.title(writes)}, or use Tensor.register_hook instead of the module's hook"
        )
    return (
        f"{who}, and {_code(raised)} then modifies its input or output in place{raised.where}. Write it out of place "
        "(x = x + y, not x += y), or use Tensor.register_hook instead of the module's hook"
    )


def _hooked_module(tensor: Tensor) -> nn.Module | None:
    """Return the module whose backward hook wrapped this tensor (torch/utils/hooks.py, BackwardHook)."""
    node = tensor.grad_fn
    if node is None or "BackwardHookFunction" not in node.name():
        return None
    for hook in (each for hooks in node_hooks(node) for each in hooks):
        for cell in getattr(hook, "__closure__", None) or ():
            module = getattr(cell.cell_contents, "module", None)
            if isinstance(module, nn.Module):
                return module
    return None


def inference_tensor(raised: RaisedError) -> str:
    """Return the note on a tensor that was created under inference_mode and is used in training."""
    names: list[str] = []
    for name, tensor in raised.operands():
        if tensor.is_inference():
            names.append(raised.name_of(tensor) or name)
            break
    names += [
        f"{path or type(module).__name__}.{name}"
        for model in raised.models
        for path, module in model.named_modules()
        for name, each in {**vars(module), **module._buffers, **module._parameters}.items()
        if isinstance(each, Tensor) and each.is_inference()
    ]
    names = list(dict.fromkeys(names))
    several = len(names) > 1
    it, each = ("them", "each") if several else ("it", "it")
    which = f"{joined(names)} {'were' if several else 'was'}" if names else "a tensor that it takes was"
    return (
        f"the forward fails{raised.where}: {which} created under torch.inference_mode(), for example a cache that an "
        f"evaluation filled. Create {it} under torch.no_grad() instead, or take .clone() of {each} in training"
    )


def deep_copy(raised: RaisedError) -> str:
    """Return the note on copy.deepcopy of a tensor with a graph, with the attribute that holds it."""
    copied = [
        (variables_of(frame)["x"], frame)
        for frame, _, _ in raised.frames
        if frame.f_code.co_filename.endswith("copy.py") and "x" in variables_of(frame)
    ]
    tensor: Any = next((value for value, _ in reversed(copied) if isinstance(value, Tensor)), None)
    name = None
    if isinstance(tensor, Tensor):
        name = raised.name_of(tensor) or raised.name_in_code(tensor)
        if name is None:
            module = next((value for value, _ in copied if isinstance(value, nn.Module)), None)
            name = (
                None
                if module is None
                else next(
                    (
                        f"{path or type(module).__name__}.{key}"
                        for path, one in module.named_modules()
                        for key, each in vars(one).items()
                        if each is tensor
                    ),
                    None,
                )
            )
    it = name or "a tensor"
    return (
        f"{it} has a graph, and copy.deepcopy{raised.at} copies leaves only. Store {it}.detach() in the module, or "
        "set it to None before the copy"
    )


def resized_gradient(raised: RaisedError) -> str:
    """Return the note on a `.grad` of another shape or dtype."""
    found = raised.find(is_leaf_with_grad)
    name = found[0] if found is not None else "the tensor"
    wanted = f" (shape {tuple(found[1].shape)}, {found[1].dtype})" if found is not None else ""
    return (
        f"{_code(raised)} assigns a gradient{raised.where} that does not have the shape and dtype of {name}{wanted}; "
        f"convert it first, or assign {name}.grad_dtype to allow another dtype"
    )
