"""Programs of HIPS/autograd's issue #219, and one after them, as they are for NumPy's arrays and `autograd`.

Each takes the model and the data of the workload, and gives a function and what to call it with. Of argument 0 the
gradient is wanted. The arrays are the tensors' own memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..hips.levels import find_autograd

if TYPE_CHECKING:
    from .workload_models_hips219 import Elementwise, FanOut, NeedlessAdditions, VanillaRNN

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def rnn_program(model: VanillaRNN, x: Tensor, label: Tensor) -> Program:
    np = find_autograd().numpy

    def rnn(parameters: Any, x: Any, label: Any) -> Any:
        weight, bias, weight_out, bias_out = parameters
        h = x
        for _ in range(model.steps):
            h = np.tanh(np.dot(h, weight) + bias)
        logit = np.dot(h, weight_out) + bias_out
        return -np.sum(label * logit - (logit + np.log(1 + np.exp(-logit))))

    parameters = tuple(parameter.detach().numpy() for parameter in model.parameters())
    return rnn, (parameters, x.numpy(), label.numpy())


def fan_out_program(model: FanOut, z: Tensor) -> Program:
    np = find_autograd().numpy

    def fan_out(x: Any, z: Any) -> Any:
        for _ in range(model.uses):
            z = np.dot(x, z)
        return np.sum(z)

    return fan_out, (model.x.detach().numpy(), z.numpy())


def elementwise_program(model: Elementwise, z: Tensor) -> Program:
    np = find_autograd().numpy

    def elementwise(x: Any, z: Any) -> Any:
        for _ in range(model.uses):
            z = np.sin(x * z)
        return np.sum(z)

    return elementwise, (model.x.detach().numpy(), z.numpy())


def needless_program(model: NeedlessAdditions) -> Program:
    np = find_autograd().numpy

    def needless(x: Any) -> Any:
        for _ in range(model.additions):
            x = x + 1
        return np.sum(x)

    return needless, (model.x.detach().numpy(),)
