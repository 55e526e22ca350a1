"""The table of PyTorch's error messages about gradients, each with the function that writes its note.

The messages are those of torch 2.13, with earlier wordings where they differ: torch/csrc/autograd, ATen/functorch,
torch/autograd, torch/utils/checkpoint.py, torch/amp, torch/optim and torch/nn/parallel.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .checkpoints import differing_recomputation, nothing_to_recompute, reentrant_gradient
from .graph_errors import (
    donated_buffers,
    function_contract,
    hook_result,
    input_without_grad,
    mixed_dtypes,
    nan_in_backward,
    no_graph,
    no_inputs,
    no_second_derivative,
    not_a_scalar,
    once_differentiable,
    saved_in_function,
    unused_input,
    wrong_gradient,
)
from .inplace_errors import modified_in_place
from .raised_error import RaisedError
from .second_backward import second_backward
from .tensor_errors import (
    about_tensor,
    deep_copy,
    inference_tensor,
    is_computed,
    is_integer,
    is_leaf_with_grad,
    modified_view,
    requires_grad,
    requires_no_grad,
    resized_gradient,
    view_of_leaf,
)
from .training_errors import (
    assigned_parameter,
    dense_gradient,
    half_parameters,
    no_inf_checks,
    not_a_leaf,
    ready_twice,
    scaler_order,
    sparse_gradient,
    unfinished_reduction,
)
from .transform_errors import TRANSFORM_NOTES


@dataclass(frozen=True, slots=True)
class ErrorNote:
    """A row of the table.

    Attributes:
        anchor: the section of the docs page "What went wrong?".
        messages: a regular expression that an error's text contains.
        note: returns the note, or None if the error has another cause than the row is for.
    """

    anchor: str
    messages: str
    note: Callable[[RaisedError], str | None]

    def matches(self, text: str) -> bool:
        return re.search(self.messages, text) is not None


_LEAF = (
    "{it} is a leaf that requires grad, and {code} modifies it in place{where}. Do it inside `with torch.no_grad():` "
    "if autograd should not track it; else compute a new tensor (y = x + 1, not x += 1)"
)
_FLAG = (
    "{it} was computed by {made}, so its requires_grad cannot be changed{where}. Call {it}.detach(), or change the "
    "flag of the parameters before the forward"
)
_OUT = "{code} writes into out={where}, which autograd cannot track. Leave out `out=`, or do it inside torch.no_grad()"
_NO_HOOK = (
    "{it} does not require grad, so it cannot have a hook{where}. Call requires_grad_() before, or hook a later result"
)
_NOT_LEAF_HOOK = "{it} was computed by {made}; a post-accumulate hook{where} needs a leaf. Use {it}.register_hook"
_RESIZE = (
    "{it} requires grad and cannot be resized{where}. Use {it}.reshape or index it, or resize under torch.no_grad()"
)
_INTEGER = "{it} has an integer dtype, which has no gradient{where}. Convert it first: {it}.float().requires_grad_()"
_NUMPY = "{it} requires grad, and NumPy{where} cannot track gradients. Use {it}.detach().numpy() if none are needed"
_EDGE = "{it} does not require grad, so it has no gradient edge{where}. Call {it}.requires_grad_() before the forward"
_SEND = "{it} was computed by {made} and cannot be sent to another process{where}. Send {it}.detach()"
_DETACH = "{it} is a view, so detach_() cannot change it in place{where}. Use {it} = {it}.detach()"
ERROR_NOTES = (
    ErrorNote(
        "second-backward",
        r"^Trying to backward through the graph a second time|backward an extra time",
        second_backward,
    ),
    ErrorNote(
        "modified-in-place",
        r"modified by an inplace operation|activation checkpoint has been mutated",
        modified_in_place,
    ),
    ErrorNote("leaf-in-place", r"^a leaf Variable that requires grad", about_tensor(is_leaf_with_grad, _LEAF)),
    ErrorNote("leaf-in-place", r"^a view of a leaf Variable", view_of_leaf),
    ErrorNote("view-in-place", r"is a view and (is being|its base)|^A view was created in", modified_view),
    ErrorNote("inference-tensor", r"nference tensor", inference_tensor),
    ErrorNote("leaf-in-place", r"^you can only change requires_grad flags", about_tensor(is_computed, _FLAG)),
    ErrorNote("leaf-in-place", r"don't support automatic differentiation", about_tensor(requires_grad, _OUT)),
    ErrorNote("leaf-in-place", r"^cannot resize variables that require grad", about_tensor(requires_grad, _RESIZE)),
    ErrorNote(
        "leaf-in-place", r"^Can't detach views in-place", about_tensor(lambda each: each._base is not None, _DETACH)
    ),
    ErrorNote("no-graph", r"does not require grad and does not have a grad_fn", no_graph),
    ErrorNote(
        "no-graph", r"^cannot register a hook on a tensor that doesn't", about_tensor(requires_no_grad, _NO_HOOK)
    ),
    ErrorNote("no-graph", r"^post accumulate grad hooks cannot", about_tensor(is_computed, _NOT_LEAF_HOOK)),
    ErrorNote(
        "no-graph",
        r"floating point (and complex )?dtype can require|must be floating point or complex",
        about_tensor(is_integer, _INTEGER),
    ),
    ErrorNote("no-graph", r"^Can't call numpy\(\) on Tensor", about_tensor(requires_grad, _NUMPY)),
    ErrorNote("no-graph", r"get the gradient edge for a Tensor", about_tensor(requires_no_grad, _EDGE)),
    ErrorNote("not-a-scalar", r"^grad can be implicitly created only for", not_a_scalar),
    ErrorNote(
        "not-a-scalar", r"^Mismatch in shape: grad_output|^For complex Tensors, both grad_output", wrong_gradient
    ),
    ErrorNote("unused-input", r"appears to not have been used in the graph", unused_input),
    ErrorNote("unused-input", r"^One of the differentiated Tensors does not require grad", input_without_grad),
    ErrorNote("unused-input", r"^can't retain_grad on Tensor", input_without_grad),
    ErrorNote(
        "unused-input",
        r"^`inputs` argument to `(backward|grad)\(\)` cannot be empty|requires non-empty inputs",
        no_inputs,
    ),
    ErrorNote("second-derivative", r"^(the )?derivative for .* is not implemented", no_second_derivative),
    ErrorNote("second-derivative", r"marked with @once_differentiable", once_differentiable),
    ErrorNote("second-derivative", r"donated buffer", donated_buffers),
    ErrorNote(
        "custom-function", r"^[Ff]unction \w+Backward returned an? (invalid|incorrect|gradient diff)", function_contract
    ),
    ErrorNote("custom-function", r"^expected Variable or None", function_contract),
    ErrorNote("custom-function", r"^save_for_backward can only save", saved_in_function),
    ErrorNote("custom-function", r"same dtype|^Found dtype|^expected scalar type", mixed_dtypes),
    ErrorNote("hooks", r"^hook '.*' has changed the", hook_result),
    ErrorNote("nan", r"^Function '\w+' returned nan values", nan_in_backward),
    ErrorNote(
        "checkpoint",
        r"^torch\.utils\.checkpoint: (A different number|Recomputed values|trying to save)",
        differing_recomputation,
    ),
    ErrorNote(
        "checkpoint", r"checkpoint is incompatible with \.grad|^Checkpointing is not compatible", reentrant_gradient
    ),
    ErrorNote("checkpoint", r"^none of output has requires_grad=True", nothing_to_recompute),
    ErrorNote("deepcopy", r"support the deepcopy protocol", deep_copy),
    ErrorNote("deepcopy", r"^Cowardly refusing to serialize non-leaf", about_tensor(is_computed, _SEND)),
    ErrorNote("optimizer", r"^can't optimize a non-leaf Tensor", not_a_leaf),
    ErrorNote("optimizer", r"^cannot assign .* as parameter '.*Parameter or None expected", assigned_parameter),
    ErrorNote("optimizer", r"^(attempting to assign a gradient|assigned grad has data)", resized_gradient),
    ErrorNote("sparse-gradient", r"^SparseAdam does not support dense", dense_gradient),
    ErrorNote(
        "sparse-gradient",
        r"does not support sparse gradients|not compatible with sparse gradients|^add\(sparse, dense\)|from the "
        r"'Sparse(CPU|CUDA)'",
        sparse_gradient,
    ),
    ErrorNote("grad-scaler", r"^No inf checks were recorded", no_inf_checks),
    ErrorNote("grad-scaler", r"^(unscale_|step)\(\) (has already been|is being) called|_scale is None\.", scaler_order),
    ErrorNote("grad-scaler", r"^Attempting to unscale FP16", half_parameters),
    ErrorNote("distributed", r"^Expected to have finished reduction", unfinished_reduction),
    ErrorNote("distributed", r"^Expected to mark a variable ready only once", ready_twice),
    *(ErrorNote("transforms", message, note) for message, note in TRANSFORM_NOTES.items()),
)
