"""Notes on PyTorch's errors about a backward's arguments and its graph: no graph, unused inputs, missing
derivatives."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.autograd.function import once_differentiable as once_decorator
from torch.autograd.graph import Node

from ....inspector.graph.frame_variables import variables_of
from ....inspector.graph.graph import Task, unique_name
from ....inspector.graph.phrases import joined, was_captured
from ....inspector.graph.source_lines import is_users
from ....inspector.torch_private.engine_errors import running_function
from ....inspector.torch_private.tensors import share_storage
from .cuts_in_source import cut_of_loss
from .raised_error import RaisedError
from .source_search import FunctionSource, functions_of

_FIND_UNUSED = "ts.find_unused(make_loss, model) shows where the path to it ends"


def no_graph(raised: RaisedError) -> str:
    """Return the reason why a loss has no graph."""
    name, loss = _output(raised)
    frozen = [
        each for each in raised.models if [*each.parameters()] and not any(p.requires_grad for p in each.parameters())
    ]
    cut = None if frozen else cut_of_loss(raised, name)
    if cut is not None:
        return f"{name} has no graph{raised.at}, probably because {cut}"
    if loss is not None and loss.is_inference():
        return f"{name} has no graph{raised.at}: it was computed under torch.inference_mode(). Leave it for training"
    if frozen:
        names = joined([type(each).__name__ for each in frozen])
        return (
            f"{name} has no graph{raised.at}: no parameter of {names} requires grad. Call requires_grad_() on those "
            "to train, before the forward"
        )
    return (
        f"{name} has no graph{raised.at}: it was computed under no_grad, from detached tensors, or from nothing that "
        f"requires grad. Compute it from the model's output with tensor operations; {_FIND_UNUSED}"
    )


def not_a_scalar(raised: RaisedError) -> str:
    """Return the note on a loss with several elements, or a complex one."""
    name, loss = _output(raised)
    if loss is not None and loss.is_complex():
        return f"{name} is complex ({loss.dtype}){raised.at}; backpropagate a real number: {name}.real, or {name}.abs()"
    if loss is not None and loss.numel() == 1:
        return f"{name} has dtype {loss.dtype}{raised.at}; backpropagate a real floating-point number"
    shape = f"has shape {tuple(loss.shape)}" if loss is not None else "has several elements"
    is_grad = raised.backward is not None and raised.backward[1].f_code is torch.autograd.grad.__code__
    passed = f"grad_outputs=torch.ones_like({name})" if is_grad else f"{name}.backward(gradient)"
    return (
        f"{name} {shape}{raised.at}; reduce the loss to a scalar ({name}.sum() or {name}.mean()), or pass its "
        f"gradient: {passed}"
    )


def wrong_gradient(raised: RaisedError) -> str:
    """Return the note on a passed gradient of another shape or dtype than its output."""
    name, output = _output(raised)
    wanted = f"{tuple(output.shape)}, {output.dtype}" if output is not None else "the output's shape and dtype"
    return (
        f"the gradient passed for {name}{raised.at} does not fit it; pass one of {wanted}, such as "
        f"torch.ones_like({name})"
    )


def no_inputs(raised: RaisedError) -> str:
    """Return the note on an empty `inputs=`."""
    return (
        f"inputs is empty{raised.at}: the list of parameters has no element, as when a filter matches none or an "
        "iterator was used up before. Pass list(model.parameters()), or leave inputs out"
    )


def input_without_grad(raised: RaisedError) -> str:
    """Return the note on an input of autograd.grad or backward(inputs=) that does not require grad."""
    for number, each in enumerate(_inputs(raised)):
        if isinstance(each, Tensor) and not each.requires_grad:
            return (
                f"{_input_name(raised, number, each)} does not require grad{raised.at}, so it has no gradient; call "
                ".requires_grad_() on it before the forward, or leave it out"
            )
    name, _ = raised.find(lambda each: not each.requires_grad) or ("a tensor", None)
    return f"{name} does not require grad{raised.where}; call .requires_grad_() on it before the forward"


def unused_input(raised: RaisedError) -> str | None:
    """Return the inputs of `autograd.grad` that the outputs do not depend on, and the reason."""
    graph, inputs = raised.graph, _inputs(raised)
    if graph is None or not inputs:
        return None
    leaves = set(map(id, graph.leaves.values()))
    unused = [
        (number, each)
        for number, each in enumerate(inputs)
        if isinstance(each, Tensor)
        and id(each) not in leaves
        and (each.grad_fn is None or each.grad_fn not in graph.nodes)
    ]
    if not unused:
        return None
    told = [f"{_input_name(raised, number, each)} {_why_unused(raised, each)}" for number, each in unused]
    return (
        f"the outputs of autograd.grad{raised.at} do not depend on {joined(told)}. Pass allow_unused=True to get "
        f"None for it, or use it in the forward; {_FIND_UNUSED}"
    )


def _why_unused(raised: RaisedError, tensor: Tensor) -> str:
    graph = raised.graph
    assert graph is not None
    for task_id, leaf in graph.leaves.items():
        if share_storage(tensor, leaf):
            return (
                "(the graph uses another tensor on its storage, a copy by detach() or .data: "
                f"{graph.describe(task_id)})"
            )
    name = raised.parameter_names.get(id(tensor), "")
    path = name.rpartition(".")[0]
    if was_captured(graph) and name:
        called = {call.path for call in graph.calls}
        if path not in called:
            return f"({path or 'its module'} was not called)"
    known = set(raised.parameter_names)
    strange = [leaf for leaf in graph.leaves.values() if id(leaf) not in known and leaf.shape == tensor.shape]
    if strange and name:
        return (
            "(the graph has another leaf of its shape, as when torch.func.functional_call puts other tensors in its "
            "place: differentiate with respect to those)"
        )
    if tensor.grad_fn is not None:
        return f"(a result of {tensor.grad_fn.name()} that no later operation uses)"
    return "(no operation of the graph uses it)"


def _inputs(raised: RaisedError) -> list[Any]:
    if raised.backward is None:
        return []
    found: Any = variables_of(raised.backward[1]).get("inputs")
    if isinstance(found, Mapping):
        return list(found.values())
    return [found] if isinstance(found, Tensor) else list(found or ())


def _input_name(raised: RaisedError, number: int, tensor: Tensor) -> str:
    name = raised.name_of(tensor) or raised.name_in_code(tensor)
    return f"inputs[{number}], {name}" if name else f"inputs[{number}], of shape {tuple(tensor.shape)}"


def _output(raised: RaisedError) -> tuple[str, Tensor | None]:
    """Return the output that a backward begins with, and its name in the user's code."""
    outputs = [] if raised.backward is None else [each for each in raised.backward[0] if isinstance(each, Tensor)]
    if not outputs:
        return "the loss", None
    loss = outputs[0]
    return raised.name_in_code(loss) or "the loss", loss


def no_second_derivative(raised: RaisedError) -> str:
    """Return the operation without a second derivative, with its module, line and a substitute."""
    named = re.search(r"derivative for '?(?:aten::)?(\w+)'? is not implemented", raised.text)
    operation = named[1] if named is not None else "an operation"
    function = operation.strip("_").removesuffix("_backward")
    bare = function.replace("_", "")
    if "attention" in operation:  # its name is the kernel's
        function, kind = "scaled_dot_product_attention", "multiheadattention"
    else:
        kind = bare
    tasks = [] if raised.graph is None else [each for each in raised.graph.tasks if _bare(each) == bare]
    where = [unique_name(raised.graph, each) for each in tasks[:1] if raised.graph is not None]
    if not any(each.source for each in tasks):
        where = _callers(raised, function, kind) or where
    remedy = next((text for part, text in _SUBSTITUTES.items() if part in operation), _SUBSTITUTE)
    of = f"PyTorch has no second derivative of {joined(where)}: " if where else ""
    return f"{of}{operation} has no derivative, which the backward{raised.at} needs; {remedy}"


_SUBSTITUTE = "compute it from operations with second derivatives, or do without create_graph"
_SUBSTITUTES = {
    "attention": "run the forward under torch.nn.attention.sdpa_kernel(SDPBackend.MATH), whose derivatives exist",
    "cdist": "pass compute_mode='use_mm_for_euclid_dist' to torch.cdist, whose derivatives exist for p=2",
    "rnn": "run the forward under torch.backends.cudnn.flags(enabled=False)",
}
"""Remedies by a part of the operation's name."""


def _bare(task: Task) -> str:
    return task.name.rpartition("::")[2].lower().rstrip("0123456789").removesuffix("backward")


def _callers(raised: RaisedError, name: str, kind: str) -> list[str]:
    """Return the modules of a class, and the modules and lines that call a function, where no capture recorded it."""
    titles: list[str] = []
    lines: dict[str, str] = {}
    for model in raised.models:
        for path, module in model.named_modules():
            if type(module).__name__.lower() == kind:
                titles.append(raised.title(module))
            elif isinstance(forward := type(module).forward, FunctionType) and is_users(forward.__code__.co_filename):
                for line in FunctionSource(forward).calls(name):
                    lines.setdefault(line.short, f"{path or 'the model'} ({type(module).__name__}, {line.short})")
    for frame, _, _ in raised.places:
        functions = [each for each in variables_of(frame).values() if callable(each)]
        sources = [FunctionSource(frame.f_code), *(one for each in functions for _, one in functions_of(each))]
        for line in (line for source in sources for line in source.calls(name)):
            lines.setdefault(line.short, f"{name} at {line.short}")
    return list(dict.fromkeys([*titles, *lines.values()]))


def donated_buffers(raised: RaisedError) -> str:
    """Return the note on retain_graph or create_graph with a compiled region whose backward frees its buffers."""
    return (
        f"the backward{raised.at} keeps the graph of {_compiled(raised)}, whose saved tensors it may overwrite "
        "(donated buffers). Leave out retain_graph=True and create_graph=True, or set "
        "torch._functorch.config.donated_buffer = False before torch.compile"
    )


def compiled_twice(raised: RaisedError) -> str:
    """Return the note on a second derivative of a compiled region."""
    return (
        f"the backward{raised.at} needs the second derivative of {_compiled(raised)}, which torch.compile does not "
        "support. Run the forward that is differentiated twice uncompiled, inside `with "
        "torch.compiler.set_stance('force_eager'):`, or do without create_graph"
    )


def _compiled(raised: RaisedError) -> str:
    """Return the compiled regions of the graph, or the compiled modules."""
    graph = raised.graph
    tasks = [] if graph is None else [each for each in graph.tasks if each.source or each.call is not None]
    named = [unique_name(graph, each) for each in tasks if graph and each.name.startswith("CompiledFunction")]
    return f"the region compiled by torch.compile{f', {joined(named)}' if named else ''}"


def function_contract(raised: RaisedError) -> str | None:
    """Return the note on what a custom Function's backward returned, with its line."""
    named = re.search(r"[Ff]unction (\w+)Backward returned", raised.text)
    node = _function_node(raised, named[1] if named else None)
    if node is None:
        return None
    line = _backward_line(_function_class(node))
    return (
        f"the backward of the custom Function {_function_class(node).__name__}{line} must return one gradient per "
        "input of forward, in order: a tensor of that input's shape and dtype, or None for an input that is not a "
        "tensor or needs no gradient"
    )


def mixed_dtypes(raised: RaisedError) -> str | None:
    """Return the note on a custom Function that mixes dtypes because its forward ran under autocast."""
    node = running_function(raised.error)
    if node is None or hasattr(node, "_fwd_used_autocast"):
        return None
    function = _function_class(node)
    place = raised.source.short if raised.source else "its backward"
    return (
        f"the backward of the custom Function {function.__name__} mixes dtypes at {place}, as a forward under "
        "torch.autocast leads to, because the backward runs without it. Decorate forward with "
        "torch.amp.custom_fwd(device_type=...) and backward with torch.amp.custom_bwd(device_type=...), where "
        "cast_inputs=torch.float32 fixes one dtype; or cast the tensors to one dtype in the backward"
    )


def once_differentiable(raised: RaisedError) -> str:
    """Return the note on a second backward through a Function marked once_differentiable."""
    # The graph of a gradient need not contain the node of the Function whose backward computed it.
    nodes = () if raised.graph is None else raised.graph.nodes
    inside = [_function_class(each) for each in nodes if hasattr(type(each), "_forward_cls")]
    marked = [each for each in [*inside, *_functions_named(raised)] if _is_marked(each)]
    names = [f"{each.__name__}{_backward_line(each)}" for each in dict.fromkeys(marked)]
    it = f"the custom Function {joined(names)} is" if len(names) == 1 else f"the custom Functions {joined(names)} are"
    return (
        f"{it if names else 'a custom Function is'} marked once_differentiable, and the backward{raised.at} needs a "
        "second derivative. Remove the decorator and write backward with tensor operations, or do without create_graph"
    )


def _functions_named(raised: RaisedError) -> Iterator[type]:
    """Yield the custom Functions that the user's code refers to: running functions, and those of the known models."""
    scopes = [(frame.f_code, {**frame.f_globals, **variables_of(frame)}) for frame, _, _ in raised.places]
    for each in (*raised.models, *(value for _, known in scopes for value in known.values() if callable(value))):
        if isinstance(each, nn.Module | FunctionType | MethodType):
            functions = (source.function for _, source in functions_of(each))
            scopes += [(one.__code__, one.__globals__) for one in functions if isinstance(one, FunctionType)]
    for code, known in scopes:
        for name in code.co_names + code.co_freevars:
            if isinstance(found := known.get(name), type) and issubclass(found, Function):
                yield found


def _is_marked(function: type) -> bool:
    """Return whether a custom Function's backward is decorated with once_differentiable."""
    backward: Any = getattr(function, "backward", None)
    return hasattr(backward, "__wrapped__") and backward.__code__.co_filename == once_decorator.__code__.co_filename


def _function_node(raised: RaisedError, name: str | None) -> Node | None:
    nodes = [] if raised.graph is None else raised.graph.nodes
    found = [each for each in nodes if hasattr(type(each), "_forward_cls")]
    return next((each for each in found if name is None or _function_class(each).__name__ == name), None)


def _function_class(node: Node) -> type:
    found: type = type(node)._forward_cls  # type: ignore[attr-defined]
    return found


def _backward_line(function: type) -> str:
    backward: Any = getattr(function, "backward", None)
    code = getattr(inspect.unwrap(backward), "__code__", None)
    return "" if code is None else f" at {FunctionSource(code).at_start.short}"


def hook_result(raised: RaisedError) -> str:
    """Return the note on a hook that returned a gradient of another shape or dtype."""
    named = re.search(r"hook '([^']*)'", raised.text)
    name = named[1] if named is not None else ""
    found = raised.find(lambda each: any(_name(hook) == name for hook in (each._backward_hooks or {}).values()))
    of, line = "", ""
    if found is not None:
        of = f" of {found[0]}"
        hook = next(each for each in (found[1]._backward_hooks or {}).values() if _name(each) == name)
        code = getattr(hook, "__code__", None)
        line = "" if code is None else f" at {FunctionSource(code).at_start.short}"
    return (
        f"the hook {name}{of}{line} returns a gradient of another shape or dtype than it receives. Return one like its "
        "argument, for example gradient.to(its dtype), or None to leave it unchanged"
    )


def _name(hook: object) -> str:
    return str(getattr(hook, "__name__", type(hook).__name__))


def nan_in_backward(raised: RaisedError) -> str:
    """Return the note on anomaly mode's NaN: the task and the verb that finds its origin."""
    named = re.search(r"Function '(\w+)' returned nan", raised.text)
    tasks = (
        [] if raised.graph is None or named is None else [each for each in raised.graph.tasks if each.name == named[1]]
    )
    place = (
        joined([unique_name(raised.graph, each) for each in tasks]) if raised.graph is not None and tasks else "a task"
    )
    return (
        f"{place} returned NaN in the backward{raised.at}. ts.find_nan(make_loss) shows the operation where the "
        "first NaN or infinity appears; clamp its input (sqrt, log and division at 0)"
    )


def saved_in_function(raised: RaisedError) -> str:
    """Return the note on save_for_backward with something that is not a tensor."""
    return (
        f"ctx.save_for_backward{raised.at} takes tensors and None, one per argument; store numbers and lists of them "
        "as attributes (ctx.scale = scale), and pass a list of tensors as *tensors"
    )
