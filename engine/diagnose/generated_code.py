"""Generates code that calls an ensemble's members as one. The text shown to the user is the text that runs.

User-defined names are treated as data. The code accesses modules by attributes that were checked to be plain children,
or by `get_submodule` with a quoted path; parameters by their quoted names; numbers by Python's `repr`.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from keyword import iskeyword
from typing import Any, Literal

from torch import nn

from .find_ensembles import Ensemble
from .similar_modules import class_name

Way = Literal["vmap", "bmm"]

_ACTIVATIONS: Mapping[type[nn.Module], Callable[[Any], str]] = {
    nn.ReLU: lambda module: "torch.relu({x})",
    nn.Tanh: lambda module: "torch.tanh({x})",
    nn.Sigmoid: lambda module: "torch.sigmoid({x})",
    nn.SiLU: lambda module: "torch.nn.functional.silu({x})",
    nn.GELU: lambda module: f"torch.nn.functional.gelu({{x}}, approximate={_text(module.approximate)})",
    nn.ELU: lambda module: f"torch.nn.functional.elu({{x}}, {_number(module.alpha)})",
    nn.LeakyReLU: lambda module: f"torch.nn.functional.leaky_relu({{x}}, {_number(module.negative_slope)})",
    nn.Softplus: lambda module: (
        f"torch.nn.functional.softplus({{x}}, {_number(module.beta)}, {_number(module.threshold)})"
    ),
    nn.Identity: lambda module: "{x}",
}
"""The elementwise activations allowed between the layers of a plain stack, as code."""

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Change:
    """One way to call an ensemble's members as one.

    Attributes:
        way: "vmap", for any members of equal structure, or "bmm", for stacks of Linear layers with stacked weights.
        code: a module's text. It uses one name, `needs`. It defines `members`; `parameters`, a dict of stacked
            parameters by name with the member as the first dimension; and `batched(...)`, which accepts the members'
            arguments and returns their combined outputs.
        needs: the name that the code uses, "model" or "members".
    """

    way: Way
    code: str
    needs: Literal["model", "members"]

    @property
    def title(self) -> str:
        return {"vmap": "torch.vmap over stacked parameters", "bmm": "torch.baddbmm of stacked weights"}[self.way]

    @contextmanager
    def run(self, ensemble: Ensemble) -> Iterator[dict[str, Any]]:
        """Execute the code in a new namespace. While the context is open, tracebacks find its lines."""
        file = f"<tapescope's change {next(_numbers)}>"
        linecache.cache[file] = (len(self.code), None, self.code.splitlines(keepends=True), file)
        try:
            given = {"model": ensemble.root, "members": list(ensemble.members)}
            namespace: dict[str, Any] = {"__name__": "change", self.needs: given[self.needs]}
            exec(compile(self.code, file, "exec", dont_inherit=True), namespace)
            yield namespace
        finally:
            linecache.cache.pop(file, None)


def changes(ensemble: Ensemble) -> Iterator[Change]:
    """Yield the ways in which an ensemble can be called as one."""
    needs, members = _members(ensemble)
    yield Change("vmap", "\n".join([*_head(ensemble), *_vmap(ensemble, members)]) + "\n", needs)
    stacks = [_stack(member) for member in ensemble.members]
    layers = stacks[0]
    alone = len(ensemble.arguments) == 1 and ensemble.arguments[0].how != "plain"
    if layers and alone and all(stack == layers for stack in stacks):
        lines = _bmm(ensemble, members, layers)
        if lines:
            yield Change("bmm", "\n".join([*_head(ensemble), *lines]) + "\n", needs)


def _head(ensemble: Ensemble) -> Iterator[str]:
    yield f"# {len(ensemble):,} × {class_name(ensemble.members[0])}, called as one."
    if ensemble.root is not None:
        yield f"# model: your {class_name(ensemble.root)}"
    else:
        yield "# members: your modules, a list in the order in which they were called"


def _vmap(ensemble: Ensemble, members: str) -> Iterator[str]:
    names = [argument.name for argument in ensemble.arguments]
    by_place = [argument.name for argument in ensemble.arguments if argument.keyword is None]
    by_keyword = [argument for argument in ensemble.arguments if argument.keyword is not None]
    taken = ", ".join(["parameters", "buffers", *names])
    given = f"({', '.join(by_place)}{',' if len(by_place) == 1 else ''})"
    if by_keyword:
        given += f", {{{', '.join(f'{_text(each.keyword)}: {each.name}' for each in by_keyword)}}}"
    dims = ", ".join(["0", "0", *("0" if each.how in ("sliced", "stacked") else "None" for each in ensemble.arguments)])
    yield "import torch"
    yield "from torch.func import functional_call, stack_module_state"
    yield ""
    yield members
    yield "# Once, before training: pass parameters.values() to the optimizer. Dimension 0 of each is the member."
    yield "parameters, buffers = stack_module_state(members)"
    yield ""
    yield ""
    yield f"def member({taken}):"
    yield f"    return functional_call(members[0], (parameters, buffers), {given})"
    yield ""
    yield ""
    yield from _batched(ensemble)
    yield f"    outputs = torch.vmap(member, in_dims=({dims}))({taken})"
    yield f"    return {ensemble.combination.code('outputs')}"


def _batched(ensemble: Ensemble) -> Iterator[str]:
    yield f"def batched({', '.join(argument.name for argument in ensemble.arguments)}):"
    yield f'    """Replaces the {len(ensemble):,} calls and {ensemble.combination.replaces}."""'
    for argument in ensemble.arguments:
        name = argument.name
        if argument.how == "shared":
            yield f"    # {name}: {tuple(argument.value.shape)}, for all members"
        elif argument.how == "sliced":
            shape = tuple(argument.value.shape)
            yield f"    # {name}: {shape}, {name}[i] for member i: the tensor that yours are slices of"
        elif argument.how == "stacked":
            yield f"    {name} = torch.stack({name})  # a list: {name}[i] for member i"


def _bmm(ensemble: Ensemble, members: str, layers: Sequence[_Layer]) -> list[str]:
    (argument,) = ensemble.arguments
    shape = argument.value.shape if argument.how == "shared" else argument.of(0).shape
    if len(shape) < 2 or not all(each.requires_grad for each in ensemble.members[0].parameters()):
        return []
    x = argument.name
    names = dict.fromkeys(name for layer in layers for name in (layer.weight, layer.bias) if name is not None)
    lines = [
        "import torch",
        "",
        members,
        "# Once, before training: pass parameters.values() to the optimizer. Dimension 0 of each is the member.",
        "parameters = {",
        "    name: torch.stack([member.get_parameter(name).detach() for member in members]).requires_grad_()",
        f"    for name in ({', '.join(map(_text, names))}{',' if len(names) == 1 else ''})",
        "}",
        "",
        "",
        *_batched(ensemble),
    ]
    if argument.how == "shared":
        lines.append(f"    {x} = {x}.expand({len(ensemble)}, *{x}.shape)  # no copy")
    if len(shape) > 2:
        lines.append(f"    {x} = {x}.flatten(1, -2)")
    for layer in layers:
        if layer.weight is None:
            if layer.activation != "{x}":
                lines.append(f"    {x} = {layer.activation.replace('{x}', x)}")
            continue
        weight = f"parameters[{_text(layer.weight)}].mT"
        if layer.bias is None:
            lines.append(f"    {x} = torch.bmm({x}, {weight})")
        else:
            lines.append(f"    {x} = torch.baddbmm(parameters[{_text(layer.bias)}].unsqueeze(1), {x}, {weight})")
    outputs = f"{x}.unflatten(1, {tuple(shape[:-1])!r})" if len(shape) > 2 else x
    return [*lines, f"    return {ensemble.combination.code(outputs)}"]


@dataclass(frozen=True, slots=True)
class _Layer:
    """A Linear layer, as the names of its parameters, or an activation, as an expression of `{x}`."""

    weight: str | None = None
    bias: str | None = None
    activation: str = ""


def _stack(member: nn.Module) -> list[_Layer] | None:
    """Return the layers of a member that consists of Linear layers and activations only; None for others."""
    names = {id(parameter): name for name, parameter in member.named_parameters()}
    layers: list[_Layer] = []
    open_: list[nn.Module] = [member]
    while open_:
        module = open_.pop()
        if type(module) is nn.Linear:
            bias = module.bias
            layers.append(_Layer(names[id(module.weight)], None if bias is None else names[id(bias)]))
        elif isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            open_ += reversed(list(module))
        elif type(module) in _ACTIVATIONS:
            layers.append(_Layer(activation=_ACTIVATIONS[type(module)](module)))
        else:
            return None
    return layers if any(layer.weight for layer in layers) else None


def _members(ensemble: Ensemble) -> tuple[Literal["model", "members"], str]:
    """Return the name that the code uses, and the line that collects the members."""
    root, paths = ensemble.root, ensemble.paths
    if root is None:
        return "members", "members = list(members)"
    container = paths[0].rpartition(".")[0]
    inside = dict(root.named_modules()).get(container)
    if isinstance(inside, nn.ModuleList | nn.Sequential) and list(inside) == list(ensemble.members):
        return "model", f"members = list({_expression(root, container)})"
    return "model", f"members = [{', '.join(_expression(root, path) for path in paths)}]"


def _expression(root: nn.Module, path: str) -> str:
    """Return `model.encoder.layers[3]` if that is certain to work, or `model.get_submodule('encoder.layers.3')`."""
    expression, module = "model", root
    for part in path.split(".") if path else ():
        if isinstance(module, nn.ModuleList | nn.Sequential) and part.isdecimal():
            expression += f"[{int(part)}]"
        elif part.isidentifier() and part.isascii() and not iskeyword(part) and not hasattr(type(module), part):
            expression += f".{part}"
        else:
            return f"model.get_submodule({_text(path)})"
        inner = module._modules.get(part)
        if inner is None:
            return f"model.get_submodule({_text(path)})"
        module = inner
    return expression


def _text(value: object) -> str:
    """Return a value as a quoted Python string."""
    return repr(str(value)) if "'" in str(value) or '"' in str(value) else f'"{repr(str(value))[1:-1]}"'


def _number(value: object) -> str:
    """Return a value as a Python number."""
    return repr(float(value) if not isinstance(value, int) else int(value))  # type: ignore[arg-type]
