"""Which operations of a forward a person means by a module's path, an operation's name, or a number."""

from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatchcase

from ...inspector.capturing.forward_program import ForwardOperation, ForwardProgram
from .modules import operation_name

_CALLED = {
    "linear": ("addmm", "mm", "bmm"),
    "matmul": ("mm", "bmm", "addmm", "mv", "dot"),
    "conv1d": ("convolution",),
    "conv2d": ("convolution",),
    "conv3d": ("convolution",),
    "conv": ("convolution",),
    "lstm": ("mkldnn_rnn_layer", "cudnn_rnn", "miopen_rnn"),
    "gru": ("mkldnn_rnn_layer", "cudnn_rnn", "miopen_rnn"),
    "scaled_dot_product_attention": ("safe_softmax", "softmax"),
    "dropout": ("native_dropout", "bernoulli"),
}
"""What the kernels are called that torch's functions of these names run."""
_NEAR = 3  # names in an error
_SHOWN = 6


def plain_name(operation: ForwardOperation) -> str:
    """`softmax` of aten._softmax.default, `relu` of aten.relu_.default, `layer_norm` of aten.native_layer_norm."""
    return operation_name(operation.name).strip("_").removeprefix("native_")


def operations_called(program: ForwardProgram, which: str | int) -> list[ForwardOperation]:
    """The operations that a person means: those that make or write something.

    Args:
        which: "attn.softmax", a module's path and an operation; a path alone, with the modules in it; an operation
            alone; or an operation's number. A path may begin inside of the model's ("softmax" of "blocks.0.attn"), and
            have patterns in it ("blocks.*.attn").

    Raises:
        ValueError: there is none by that name; it has the nearest ones.
        TypeError: it is neither a text nor a number.
    """
    if isinstance(which, bool) or not isinstance(which, str | int):
        raise TypeError(
            'an operation is a module\'s path and its name, as in "attn.softmax", or its number, not a '
            f"{type(which).__name__}"
        )
    count = len(program.operations)
    does = [each for each in program.operations if each.makes or each.writes]
    text = str(which).strip()
    is_number = isinstance(which, int) or (text.isdecimal() and not any(_is_in(each.module, text) for each in does))
    if is_number:
        if not 0 <= int(which) < count:
            raise ValueError(f"there is no operation {which}: this forward has 0 to {count - 1}")
        return [program.operations[int(which)]]
    path, _, name = text.rpartition(".")
    found = (
        [each for each in does if _is_in(each.module, text)]
        or [each for each in does if _is_called(each, name) and (not path or _is_in(each.module, path))]
        or [each for each in does if text in (each.name, operation_name(each.name))]
        or [each for each in does if name in plain_name(each) and (not path or _is_in(each.module, path))]
    )
    if not found:
        raise ValueError(_nothing_called(does, text))
    return found


def _is_in(module: str | None, path: str) -> bool:
    """Whether a module's path is this one, or below it; the front of the model's own may be left out."""
    if module is None:
        return False
    return any(fnmatchcase(module, pattern) for pattern in (path, f"{path}.*", f"*.{path}", f"*.{path}.*"))


def _is_called(operation: ForwardOperation, name: str) -> bool:
    plain = plain_name(operation)
    wanted = name.lower()
    if fnmatchcase(plain, wanted) or plain.removesuffix("_backward") in _CALLED.get(wanted, ()):
        return True
    return wanted == "scaled_dot_product_attention" and plain.startswith(wanted)


def _nothing_called(does: list[ForwardOperation], which: str) -> str:
    said = f'no operation of this forward is called "{which}"'
    names: dict[str, None] = {}
    for each in does:
        if each.module:
            names[each.module] = None
        names[f"{each.module}.{plain_name(each)}" if each.module else plain_name(each)] = None
    lower = {name.lower(): name for name in names}
    tail = which.rpartition(".")[2].lower()
    near = get_close_matches(which.lower(), lower, _NEAR, cutoff=0.5)
    near = near or [each for each in lower if each.rpartition(".")[2] == tail][:_NEAR]
    near = near or get_close_matches(tail, {plain_name(each): None for each in does}, _NEAR, cutoff=0.5)
    if near:
        return f"{said}; the nearest names are {', '.join(lower.get(each, each) for each in near)}"
    plain = list(dict.fromkeys(map(plain_name, does)))
    modules = list(dict.fromkeys(each.module for each in does if each.module))
    shown = [f"{', '.join(each[:_SHOWN])}{', ...' if len(each) > _SHOWN else ''}" for each in (plain, modules) if each]
    return f"{said}; there are {' in '.join(shown)}"
