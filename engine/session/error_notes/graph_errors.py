"""Notes on PyTorch's errors about a backward's arguments and its graph: no graph, unused inputs, missing
derivatives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node

from ....inspector.graph.frame_variables import variables_of
from ....inspector.graph.graph import Task, unique_name
from ....inspector.graph.phrases import joined, was_captured
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
        return f"{name} has no graph{raised.at}: {cut}"
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
    return (
        f"{name} {shape}{raised.at}; reduce the loss to a scalar ({name}.sum() or {name}.mean()), or pass its "
        f"gradient: {name}.backward(gradient)"
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
    bare = operation.replace("_", "").removesuffix("backward")
    tasks = [] if raised.graph is None else [each for each in raised.graph.tasks if _bare(each) == bare]
    where = [f"{unique_name(raised.graph, each)}" for each in tasks[:1] if raised.graph is not None]
    attention = "attention" in operation
    if attention and not any(each.source for each in tasks):
        where = [*_attention_lines(raised)] or where
    of = f" of {where[0]}" if where else ""
    if attention:
        remedy = "run the forward under torch.nn.attention.sdpa_kernel(SDPBackend.MATH), whose derivatives exist"
    elif "cudnn" in operation or "rnn" in operation:
        remedy = "run the forward under torch.backends.cudnn.flags(enabled=False)"
    else:
        remedy = "compute it from operations with second derivatives, or do without create_graph"
    return f"{operation} has no second derivative{of}, which the backward{raised.at} needs; {remedy}"


def _bare(task: Task) -> str:
    return task.name.rpartition("::")[2].lower().rstrip("0123456789").removesuffix("backward")


def _attention_lines(raised: RaisedError) -> Iterator[str]:
    """Yield the modules that call scaled_dot_product_attention, with the line, where no capture recorded them."""
    for model in raised.models:
        for path, module in model.named_modules():
            if isinstance(module, nn.MultiheadAttention):
                yield raised.title(module)
            for line in FunctionSource(type(module).forward).calls("scaled_dot_product_attention"):
                yield f"{path or 'the model'} ({type(module).__name__}, {line.short})"
    for frame, _, _ in raised.places:
        for value in variables_of(frame).values():
            if callable(value):
                for _, function in functions_of(value):
                    yield from (line.short for line in function.calls("scaled_dot_product_attention"))


def donated_buffers(raised: RaisedError) -> str:
    """Return the note on retain_graph or create_graph with a compiled region whose backward frees its buffers."""
    return (
        f"the backward{raised.at} keeps the graph of a compiled region whose saved tensors it may overwrite (donated "
        "buffers). Leave out retain_graph=True and create_graph=True, or set torch._functorch.config.donated_buffer = "
        "False before torch.compile"
    )


def function_contract(raised: RaisedError) -> str | None:
    """Return the note on what a custom Function's backward returned, with its line."""
    named = re.search(r"[Ff]unction (\w+)Backward returned", raised.text)
    node = _function_node(raised, named[1] if named else None)
    if node is None:
        return None
    line = _backward_line(node)
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
        f"the backward of the custom Function {function.__name__} mixes dtypes at {place}: its forward ran under "
        "autocast, and its backward does not. Decorate forward with torch.amp.custom_fwd(device_type=...) and "
        "backward with torch.amp.custom_bwd(device_type=...); cast_inputs=torch.float32 fixes one dtype"
    )


def once_differentiable(raised: RaisedError) -> str:
    """Return the note on a second backward through a Function marked once_differentiable."""
    node = running_function(raised.error) or _function_node(raised, None)
    name = f" {_function_class(node).__name__}{_backward_line(node)}" if node is not None else ""
    return (
        f"the custom Function{name} is marked once_differentiable, and the backward{raised.at} needs its second "
        "derivative. Remove the decorator and write backward with tensor operations, or do without create_graph"
    )


def _function_node(raised: RaisedError, name: str | None) -> Node | None:
    nodes = [] if raised.graph is None else raised.graph.nodes
    found = [each for each in nodes if hasattr(type(each), "_forward_cls")]
    return next((each for each in found if name is None or _function_class(each).__name__ == name), None)


def _function_class(node: Node) -> type:
    found: type = type(node)._forward_cls  # type: ignore[attr-defined]
    return found


def _backward_line(node: Node) -> str:
    code = getattr(getattr(_function_class(node), "backward", None), "__code__", None)
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
