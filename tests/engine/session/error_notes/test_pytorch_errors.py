"""Each of PyTorch's own errors about gradients gets one note, with the tensor, the module or line, and the remedy.

Each program raises PyTorch's error itself, so that a new wording in a new version of torch fails here.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import tapescope as ts
from tapescope.engine.session.error_notes.pytorch_errors import ERROR_NOTES
from tapescope.tests.says import says

HERE = "test_pytorch_errors.py:"
PROGRAMS: list[tuple[str, Callable[[], object], tuple[str, ...]]] = []


def raising(anchor: str, *facts: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Register a program whose error has to have a note with this anchor and these facts."""

    def register(program: Callable[[], object]) -> Callable[[], object]:
        PROGRAMS.append((anchor, program, (HERE, *facts)))
        return program

    return register


def parameter(*size: int) -> Tensor:
    return torch.ones(*size or (3,), requires_grad=True)


@raising("leaf-in-place", "scale", "scale.add_(1)", "torch.no_grad()")
def leaf() -> None:
    scale = parameter()
    scale.add_(1)


@raising("leaf-in-place", "bias[:2]", "view", "torch.no_grad()", "clone()")
def view_of_leaf() -> None:
    bias = parameter()
    bias[:2].mul_(2)


@raising("leaf-in-place", "hidden", "MulBackward0", "detach()")
def flag() -> None:
    hidden = parameter() * 2
    hidden.requires_grad_(False)


@raising("leaf-in-place", "torch.add(x, x, out=result)", "out=")
def out() -> None:
    x, result = parameter(), torch.empty(3)
    torch.add(x, x, out=result)


@raising("leaf-in-place", "weight", "resize")
def resize() -> None:
    weight = parameter()
    weight.resize_(2)


@raising("leaf-in-place", "part", "detach_()", "part.detach()")
def detach_view() -> None:
    part = (parameter() * 2)[:2]
    part.detach_()


@raising("view-in-place", "first", "unbind", "clone()")
def several_views() -> None:
    first, *_ = (parameter() * 2).unbind()
    first.add_(1)


@raising("view-in-place", "part", "no_grad")
def view_under_no_grad() -> None:
    y = parameter() * 2
    with torch.no_grad():
        part = y[:2]
    part.add_(1)


@raising("view-in-place", "part", "custom Function", "clone()")
def view_of_function() -> None:
    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
            return x[:2]

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
            return nn.functional.pad(gradient, (0, 1))

    part = First.apply(parameter() * 2)
    part.add_(1)


@raising("view-in-place", "0 (Linear)", "1 (ReLU)", "full backward hook", "inplace=False")
def hook_and_in_place() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    net[0].register_full_backward_hook(lambda module, given, taken: None)
    net(torch.ones(3))


@raising("inference-tensor", "table", "inference_mode", "clone()", "no_grad")
def inference_saved() -> None:
    with torch.inference_mode():
        table = torch.ones(3)
    parameter() * table


@raising("inference-tensor", "table", "inference_mode", "clone()")
def inference_in_place() -> None:
    with torch.inference_mode():
        table = torch.ones(3)
    table.add_(1)


@raising("inference-tensor", "table", "inference_mode")
def inference_requires_grad() -> None:
    with torch.inference_mode():
        table = torch.ones(3)
    table.requires_grad_()


@raising("no-graph", "loss", "item()", "Python number")
def no_graph() -> None:
    total = parameter().sum().item()
    loss = torch.zeros(()) + total
    loss.backward()


@raising("no-graph", "loss", "torch.tensor", "torch.stack")
def no_graph_of_copies() -> None:
    losses = [parameter().sum(), parameter().sum()]
    loss = torch.tensor(losses).mean()
    loss.backward()


@raising("no-graph", "loss", "create_graph=True")
def no_graph_of_gradient() -> None:
    x = parameter()
    (gradient,) = torch.autograd.grad(x.square().sum(), x)
    loss = gradient.square().sum()
    loss.backward()


@raising("no-graph", "batch", "requires_grad_()")
def hook_without_grad() -> None:
    batch = torch.ones(3)
    batch.register_hook(print)


@raising("no-graph", "hidden", "MulBackward0", "register_hook")
def hook_of_leaves() -> None:
    hidden = parameter() * 2
    hidden.register_post_accumulate_grad_hook(print)


@raising("no-graph", "ids", "integer", "float()")
def integers() -> None:
    ids = torch.arange(3)
    ids.requires_grad_()


@raising("no-graph", "hidden", "detach().numpy()")
def to_numpy() -> None:
    hidden = parameter() * 2
    hidden.numpy()


@raising("no-graph", "batch", "requires_grad_()")
def edge() -> None:
    batch = torch.ones(3)
    torch.autograd.graph.get_gradient_edge(batch)


@raising("not-a-scalar", "losses", "(3,)", "losses.mean()")
def not_a_scalar() -> None:
    losses = parameter() * 2
    losses.backward()


@raising("not-a-scalar", "loss", "complex64", "loss.real")
def complex_loss() -> None:
    loss = (parameter() * 1j).sum()
    loss.backward()


@raising("not-a-scalar", "outputs", "(3,)", "torch.ones_like(outputs)")
def wrong_gradient() -> None:
    outputs = parameter() * 2
    outputs.backward(torch.ones(2))


@raising("unused-input", "inputs[1]", "other", "allow_unused=True")
def unused() -> None:
    x, other = parameter(), parameter()
    torch.autograd.grad(x.sum(), [x, other])


@raising("unused-input", "inputs[1]", "batch", "requires_grad_()")
def input_without_grad() -> None:
    x, batch = parameter(), torch.ones(3)
    torch.autograd.grad(x.sum(), [x, batch])


@raising("unused-input", "inputs[0]", "batch", "requires_grad_()")
def backward_input_without_grad() -> None:
    x, batch = parameter(), torch.ones(3)
    x.sum().backward(inputs=[batch])


@raising("unused-input", "inputs", "list(model.parameters())")
def no_inputs() -> None:
    parameter().sum().backward(inputs=[])


@raising("unused-input", "inputs", "iterator")
def no_inputs_of_grad() -> None:
    torch.autograd.grad(parameter().sum(), [])


@raising("second-backward", "loss", "retain_graph=True")
def second_backward() -> None:
    loss = parameter().square().sum()
    loss.backward()
    loss.backward()


@raising("second-backward", "penalty", "before the loop", "penalty.detach()")
def loss_before_loop() -> None:
    weight = parameter()
    penalty = weight.square().sum()
    for _ in range(2):
        (weight.sum() + penalty).backward()


@raising("second-backward", "hidden", "hidden = hidden.detach()")
def carried_state() -> None:
    cell, hidden = nn.RNNCell(2, 3), torch.zeros(1, 3)
    for _ in range(3):
        hidden = cell(torch.ones(1, 2), hidden)
        hidden.sum().backward()


@raising("modified-in-place", "gate", "SigmoidBackward0", "mul_", "clone()")
def modified_in_place() -> None:
    gate = parameter().sigmoid()
    gate.mul_(2)
    gate.sum().backward()


@raising("modified-in-place", "1.weight", "MmBackward0")
def modified_parameter() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loss = net(torch.ones(1, 2)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    loss.backward()


@raising("second-derivative", "attention", "sdpa_kernel(SDPBackend.MATH)")
def second_derivative() -> None:
    q = torch.ones(1, 2, 4, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(nn.functional.scaled_dot_product_attention(q, q, q).sum(), q, create_graph=True)
    gradient.sum().backward()


@raising("custom-function", "Twice", "gradient", "input")
def too_few_gradients() -> None:
    apply_twice(lambda ctx, gradient: gradient, parameter(), parameter()).sum().backward()


@raising("custom-function", "Twice", "shape")
def gradient_of_other_shape() -> None:
    apply_twice(lambda ctx, gradient: (gradient[:2], None), parameter(), None).sum().backward()


@raising("custom-function", "Twice", "None")
def gradient_of_a_number() -> None:
    apply_twice(lambda ctx, gradient: (gradient, gradient), parameter(), 3).sum().backward()


def apply_twice(backward: Callable[..., object], *given: object) -> Tensor:
    members = {"forward": staticmethod(lambda ctx, x, y: x * 2), "backward": staticmethod(backward)}
    return type("Twice", (torch.autograd.Function,), members).apply(*given)


@raising("custom-function", "save_for_backward", "*tensors")
def saved_list() -> None:
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward([x])
        return x * 2

    type("Keep", (torch.autograd.Function,), {"forward": staticmethod(forward)}).apply(parameter())


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, x.T @ gradient


@raising("custom-function", "Product", "autocast", "custom_fwd", "custom_bwd")
def dtypes_under_autocast() -> None:
    layer, weight = nn.Linear(3, 3), parameter(3, 3)
    with torch.autocast("cpu"):
        y = Product.apply(layer(torch.ones(2, 3)), weight)
    y.float().sum().backward()


@raising("hooks", "halve", "y", "dtype")
def hook_of_other_shape() -> None:
    def halve(gradient: Tensor) -> Tensor:
        return gradient[:1]

    y = parameter() * 2
    y.register_hook(halve)
    y.sum().backward()


@raising("nan", "SqrtBackward0", "ts.find_nan")
def nan() -> None:
    with torch.autograd.set_detect_anomaly(True):
        (torch.zeros(1, requires_grad=True).sqrt() * 0).sum().backward()


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.keys = nn.Linear(2, 2), []

    def forward(self, x: Tensor) -> Tensor:
        self.keys.append(self.lin(x))
        return torch.cat(self.keys).sin().sum()


@raising("checkpoint", "Growing", "self.keys", "saved tensor")
def checkpoint_of_other_shapes() -> None:
    net = Growing()
    checkpoint(net, torch.ones(1, 2), use_reentrant=False).backward()


COUNT = {"runs": 0}


def counting(x: Tensor) -> Tensor:
    COUNT["runs"] += 1
    return x.sin().cos() if COUNT["runs"] % 2 else x.sin()


@raising("checkpoint", "counting", "COUNT['runs']", "forward saved 2")
def checkpoint_with_fewer() -> None:
    COUNT["runs"] = 0
    checkpoint(counting, parameter(), use_reentrant=False).sum().backward()


@raising("checkpoint", "counting", "COUNT['runs']", "more than the 1")
def checkpoint_with_more() -> None:
    COUNT["runs"] = 1
    with set_checkpoint_early_stop(False):
        y = checkpoint(counting, parameter(), use_reentrant=False)
        y.sum().backward()


@raising("checkpoint", "use_reentrant=False", "autograd.grad")
def reentrant_grad() -> None:
    x = parameter()
    torch.autograd.grad(checkpoint(torch.sin, x, use_reentrant=True).sum(), x)


@raising("checkpoint", "detached", "use_reentrant=False")
def reentrant_detached() -> None:
    def detached(x: Tensor) -> Tensor:
        return x.detach() * 2

    checkpoint(detached, parameter(), use_reentrant=True).sum().backward()


@raising("deepcopy", "Linear.cache", "detach()")
def deepcopy() -> None:
    net = nn.Linear(3, 3)
    net.cache = net(torch.ones(3))
    copy.deepcopy(net)


@raising("deepcopy", "hidden", "detach()")
def sent() -> None:
    hidden = parameter() * 2
    torch.multiprocessing.reductions.reduce_tensor(hidden)


@raising("optimizer", "scale", "MulBackward0", "requires_grad_()")
def not_a_leaf() -> None:
    scale = parameter() * 2
    torch.optim.SGD([scale], 0.1)


@raising("optimizer", "Linear.weight", "nn.Parameter(tensor.detach())", "parametrize")
def assigned() -> None:
    layer = nn.Linear(3, 3)
    layer.weight = layer.weight * 2


@raising("optimizer", "weight", "(3,)", "float32")
def gradient_of_other_size() -> None:
    weight = parameter()
    weight.grad = torch.ones(2)


def embedding_step(make: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]) -> None:
    net = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    optimizer = make(net.parameters())
    net(torch.tensor([1, 2])).sum().backward()
    optimizer.step()


@raising("sparse-gradient", "0.weight", "0 (Embedding)", "Adam", "SparseAdam", "sparse=False")
def sparse_adam() -> None:
    embedding_step(lambda parameters: torch.optim.Adam(parameters))


@raising("sparse-gradient", "0.weight", "SGD", "weight_decay=0", "sparse=False")
def sparse_weight_decay() -> None:
    embedding_step(lambda parameters: torch.optim.SGD(parameters, 0.1, weight_decay=0.1))


@raising("sparse-gradient", "0.weight", "Adagrad", "weight_decay=0")
def sparse_weight_decay_of_adagrad() -> None:
    embedding_step(lambda parameters: torch.optim.Adagrad(parameters, weight_decay=0.1))


@raising("sparse-gradient", "0.weight", "clipping", "sparse=False")
def sparse_clipping() -> None:
    net = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    net(torch.tensor([1, 2])).sum().backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)


@raising("sparse-gradient", "weight", "dense", "torch.optim.Adam")
def dense_gradient() -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SparseAdam(net.parameters())
    net(torch.ones(2)).sum().backward()
    optimizer.step()


@raising("grad-scaler", "weight", "SGD", "scaler.scale(loss).backward()")
def no_inf_checks() -> None:
    net = nn.Linear(2, 2)
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu")
    scaler.scale(net(torch.ones(2)).sum())
    scaler.step(optimizer)


@raising("grad-scaler", "unscale_", "update()")
def unscaled_twice() -> None:
    net = nn.Linear(2, 2)
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu")
    scaler.scale(net(torch.ones(2)).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


@raising("grad-scaler", "update()")
def stepped_twice() -> None:
    net = nn.Linear(2, 2)
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu")
    scaler.scale(net(torch.ones(2)).sum()).backward()
    scaler.step(optimizer)
    scaler.step(optimizer)


@raising("grad-scaler", "weight", "float16", "torch.autocast")
def half_parameters() -> None:
    net = nn.Linear(2, 2).half()
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu")
    scaler.scale(net(torch.ones(2).half()).sum()).backward()
    scaler.step(optimizer)


@raising("transforms", "a.sum() > 0", "torch.where")
def vmap_condition() -> None:
    vmap(lambda a: a if a.sum() > 0 else -a)(torch.ones(2, 3))


@raising("transforms", "a.sum().item()", "Python number")
def vmap_item() -> None:
    vmap(lambda a: a * a.sum().item())(torch.ones(2, 3))


@raising("transforms", "torch.rand(3)", "randomness='different'")
def vmap_random() -> None:
    vmap(lambda a: a + torch.rand(3))(torch.ones(2, 3))


@raising("transforms", "BatchNorm1d", "GroupNorm")
def vmap_batch_norm() -> None:
    vmap(nn.BatchNorm1d(3))(torch.ones(2, 4, 3))


@raising("transforms", "a.nonzero()", "torch.where")
def vmap_dynamic_shape() -> None:
    vmap(lambda a: a.nonzero())(torch.ones(2, 3))


@raising("transforms", "out_dims=None")
def vmap_of_number() -> None:
    vmap(lambda a: 3)(torch.ones(2, 3))


@raising("transforms", "in_dims=None")
def vmap_sizes() -> None:
    vmap(torch.add)(torch.ones(2, 3), torch.ones(4, 3))


@raising("transforms", "scalar", "jacrev")
def grad_of_several() -> None:
    grad(lambda a: a * 2)(torch.ones(3))


@raising("transforms", "a.requires_grad_()", "torch.func.grad")
def requires_grad_inside() -> None:
    grad(lambda a: (a.requires_grad_() * 2).sum())(torch.ones(3))


@raising("transforms", "backward()", "torch.func.grad")
def backward_inside() -> None:
    grad(lambda a: (a * 2).sum().backward())(torch.ones(3))


@raising("transforms", "Product.apply", "setup_context")
def function_without_setup() -> None:
    grad(lambda a: Product.apply(a, a).sum())(torch.ones(3, 3))


@raising("transforms", "checkpoint", "saved tensor hooks")
def checkpoint_inside() -> None:
    grad(lambda a: checkpoint(torch.sin, a, use_reentrant=False).sum())(torch.ones(3))


IDS = [program.__name__ for _, program, _ in PROGRAMS]


def raised_by(program: Callable[[], object]) -> Exception:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program()
        except Exception as error:
            return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(("anchor", "program", "facts"), PROGRAMS, ids=IDS)
def test_an_error_in_a_capture_says_its_cause(
    anchor: str, program: Callable[[], object], facts: tuple[str, ...]
) -> None:
    plain = raised_by(program)
    assert not hasattr(plain, "__notes__")

    def captured() -> None:
        with ts.capture():
            program()

    error = raised_by(captured)
    assert type(error) is type(plain)
    notes = [each for each in error.__notes__ if "what_went_wrong.md" in each]
    assert len(notes) == 1
    says(notes[0], f"what_went_wrong.md#{anchor}", *facts)


@pytest.mark.parametrize(("anchor", "program", "facts"), PROGRAMS, ids=IDS)
def test_an_error_in_a_watched_loop_says_its_cause(
    anchor: str, program: Callable[[], object], facts: tuple[str, ...]
) -> None:
    def watched() -> None:
        with ts.training():
            program()

    notes = [each for each in raised_by(watched).__notes__ if "what_went_wrong.md" in each]
    assert len(notes) == 1
    says(notes[0], f"what_went_wrong.md#{anchor}", *facts)


def test_the_programs_raise_most_of_the_table() -> None:
    texts = [str(raised_by(program)) for _, program, _ in PROGRAMS]
    rows = {next(number for number, row in enumerate(ERROR_NOTES) if row.matches(text)) for text in texts}
    assert len(PROGRAMS) >= 60
    assert len(rows) >= 50


def test_other_errors_get_no_note() -> None:
    def fails() -> None:
        raise ValueError("the batch is empty")

    def captured() -> None:
        with ts.capture():
            fails()

    assert not hasattr(raised_by(captured), "__notes__")
