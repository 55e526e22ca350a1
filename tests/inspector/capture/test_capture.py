from __future__ import annotations

import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.inspector.graph.kinds import Kind
from tapescope.inspector.graph.operation_inputs import KeptInputs
from tapescope.inspector.graph.operations_and_calls import Operation
from tapescope.tests.says import Snapshots, raises, says


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.down = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu())  # the line of the add


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).sum()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


def in_place() -> tuple[Any, ...]:
    """Return the global changes of captures: hooks, modes, `Function.apply`, the code of a module's call."""
    apply = torch.autograd.Function.__dict__["apply"]
    return (
        len(nn.modules.module._global_forward_pre_hooks),
        len(nn.modules.module._global_forward_hooks),
        len(torch.overrides._get_current_function_mode_stack()),
        getattr(apply, "__func__", apply),
        nn.Module._wrapped_call_impl.__code__,
    )


IN_PLACE = in_place()


def assert_nothing_left_behind() -> None:
    modules = nn.modules.module
    assert not modules._global_forward_hooks and not modules._global_forward_pre_hooks
    assert not modules._global_forward_hooks_always_called
    assert torch._C._len_torch_function_stack() == 0
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert in_place()[3:] == IN_PLACE[3:]


def by_path(graph: ts.Graph) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = {}
    for task in graph.tasks:
        if task.kind is not Kind.ACCUMULATE_GRAD:
            found.setdefault(graph.module(task), []).append(task.name)
    return found


def test_each_task_knows_the_module_that_made_it() -> None:
    with ts.capture():
        loss = Model()(torch.ones(2, 4))
    assert by_path(ts.graph(loss)) == {
        "blocks.0.up": ["TBackward0", "AddmmBackward0"],
        "blocks.0": ["ReluBackward0", "AddBackward0"],
        "blocks.0.down": ["TBackward0", "AddmmBackward0"],
        "blocks.1.up": ["TBackward0", "AddmmBackward0"],
        "blocks.1": ["ReluBackward0", "AddBackward0"],
        "blocks.1.down": ["TBackward0", "AddmmBackward0"],
        "head": ["TBackward0", "AddmmBackward0"],
        "": ["SumBackward0"],
    }
    assert_nothing_left_behind()


def test_hooks_before_a_forward_belong_to_its_module_and_those_after_it_to_the_caller() -> None:
    def before(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        return (given[0].sin(),)  # the line of the pre-hook

    def after(module: nn.Module, given: object, result: Tensor) -> Tensor:
        return result.cos()  # the line of the hook

    model = Model()
    up = model.blocks[0].up
    up.register_forward_pre_hook(before)
    up.register_forward_hook(after)
    with ts.capture():
        loss = model(torch.ones(2, 4, requires_grad=True))
    graph = ts.graph(loss)
    assert by_path(graph)["blocks.0.up"] == ["SinBackward0", "TBackward0", "AddmmBackward0"]
    assert by_path(graph)["blocks.0"] == ["CosBackward0", "ReluBackward0", "AddBackward0"]
    lines = {task.name: task.source.line for task in graph.tasks if task.source is not None}
    assert lines["SinBackward0"] == line_of("# the line of the pre-hook")
    assert lines["CosBackward0"] == line_of("# the line of the hook")
    assert_nothing_left_behind()


def test_module_calls_are_nested_as_the_modules_were() -> None:
    with ts.capture():
        loss = Model()(torch.ones(2, 4))
    calls = ts.graph(loss).calls
    parents = {call.path: None if call.parent is None else calls[call.parent].path for call in calls}
    assert parents["blocks.0.up"] == "blocks.0" and parents["blocks.0"] == "" and parents[""] is None
    assert {call.path: call.class_name for call in calls}["blocks.1"] == "Block"


def test_parameters_are_named_without_being_told() -> None:
    model = Model()
    with ts.capture():
        loss = model(torch.ones(2, 4))
    names = {task.parameter for task in ts.graph(loss).tasks if task.kind is Kind.ACCUMULATE_GRAD}
    assert names == {name for name, _ in model.named_parameters()}


def test_the_source_is_the_users_line() -> None:
    with ts.capture():
        loss = Model()(torch.ones(2, 4))
    graph = ts.graph(loss)
    adds = [task.source for task in graph.tasks if task.name == "AddBackward0"]
    assert len(adds) == 2
    for source in adds:
        assert source is not None
        assert (Path(source.file).name, source.line) == ("test_capture.py", line_of("# the line of the add"))
        assert source.function == "forward"
        assert "self.down(self.up(x).relu())" in source.code()[0]


def test_all_tasks_of_one_operation_share_it_and_its_time() -> None:
    with ts.capture() as tape:
        loss = nn.Linear(4, 4)(torch.ones(2, 4)).sum()
    transpose, addmm, total = ts.graph(loss).tasks[:3]
    assert transpose.operation is addmm.operation
    assert addmm.operation is not None and addmm.operation.name == "torch.nn.functional.linear"
    assert total.operation is not None and total.operation.name == "torch.Tensor.sum"
    assert tape.started_ns < addmm.operation.created_ns < total.operation.created_ns


def test_a_module_called_several_times_has_a_call_for_each() -> None:
    cell = nn.Linear(4, 4)
    with ts.capture(cell):
        x = torch.ones(1, 4)
        for _ in range(3):
            x = cell(x)
    graph = ts.graph(x.sum())
    assert [(call.path, call.index) for call in graph.calls] == [("", 0), ("", 1), ("", 2)]
    weights = [task for task in graph.tasks if task.parameter == "weight"]
    assert len(weights) == 1 and weights[0].call == 0


def test_code_outside_modules_has_a_source_and_no_module() -> None:
    x = torch.ones(3, requires_grad=True)
    with ts.capture():
        loss = x.exp().sum()
    graph = ts.graph(loss)
    assert graph.calls == ()
    assert all(task.source is not None and task.source.file == __file__ for task in graph.tasks)


def test_in_place_writes_are_seen() -> None:
    x = torch.ones(4, requires_grad=True)
    with ts.capture():
        y = x * 1
        y[:2] = 0
        y.add_(x)
        view = y[1:]
        view.mul_(2)
    graph = ts.graph(y.sum())
    names = {task.name: task.operation and task.operation.name for task in graph.tasks}
    assert names["torch::autograd::CopySlices"] in ("torch.Tensor.__setitem__", "torch.Tensor.mul_")
    assert sum(task.kind is Kind.COPY_SLICES for task in graph.tasks) == 2
    assert [task.name for task in graph.tasks if task.operation is None] == ["SumBackward0"]


def test_a_custom_function_is_seen() -> None:
    x = torch.ones(4, requires_grad=True)
    with ts.capture():
        loss = Square.apply(x).sum()
    graph = ts.graph(loss)
    assert graph.tasks[0].operation is not None and graph.tasks[0].operation.name == "Square"
    assert graph.tasks[0].source is not None and graph.tasks[0].source.file == __file__
    loss.backward()
    assert torch.equal(x.grad, torch.full((4,), 2.0))
    assert_nothing_left_behind()


@pytest.mark.parametrize("inside", [True, False])
def test_a_tensor_modified_after_it_was_saved_is_still_an_error(inside: bool) -> None:
    x = torch.ones(4, requires_grad=True)
    with ts.capture():
        y = x.exp()
        loss = y.sum()
        if inside:
            y.add_(1)
    if not inside:
        y.add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


def test_the_gradients_are_those_without_a_capture() -> None:
    torch.manual_seed(0)
    model = Model()
    x = torch.randn(8, 4)
    model(x).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with ts.capture():
        loss = model(x)
    loss.backward()
    assert all(torch.equal(one.grad, other) for one, other in zip(model.parameters(), expected, strict=True))


def test_a_backward_of_the_gradients_works_under_capture() -> None:
    x = torch.full((3,), 2.0, requires_grad=True)
    with ts.capture():
        (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), x)
    assert torch.equal(second, torch.full((3,), 12.0))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_inside_works_and_recomputes_once(reentrant: bool) -> None:
    calls = 0
    block = Block()
    x = torch.ones(2, 4, requires_grad=True)

    def counted(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return block(x)

    with ts.capture():
        loss = checkpoint(counted, x, use_reentrant=reentrant).sum()
    graph = ts.graph(loss)
    assert calls == 1, "reading the graph must not recompute"
    loss.backward()
    assert calls == 2
    assert block.up.weight.grad is not None
    assert len(graph) > 2


def test_the_users_own_saved_tensor_hooks_keep_working_inside_and_around() -> None:
    packed = []

    def pack(tensor: Tensor) -> tuple[str, Tensor]:
        packed.append(tensor.shape)
        return "mine", tensor.detach()

    def unpack(held: tuple[str, Tensor]) -> Tensor:
        assert held[0] == "mine"
        return held[1]

    x = torch.ones(3, requires_grad=True)
    with ts.capture(), torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = x.exp().sum()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack), ts.capture():
        loss = loss + x.exp().sum()
    assert ts.graph(loss).saved == (), "what the hooks packed is not looked at"
    loss.backward()
    assert len(packed) == 2 and x.grad is not None


def test_transforms_of_functions_work_under_capture() -> None:
    with ts.capture():
        gradient = torch.func.grad(lambda x: (x**3).sum())(torch.full((2,), 2.0))
    assert torch.equal(gradient, torch.full((2,), 12.0))


def test_a_custom_function_sees_the_very_parameter_it_saved() -> None:
    seen = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append(ctx.saved_tensors[0])
            return gradient * 2

    weight = nn.Parameter(torch.ones(2))
    with ts.capture():
        loss = Keeps.apply(weight).sum()
    loss.backward()
    assert seen[0] is weight


def test_captures_can_be_nested_and_repeated() -> None:
    model = Model()
    with ts.capture():
        with ts.capture() as inner:
            first = model(torch.ones(1, 4))
        second = model(torch.ones(1, 4))
    assert inner.error is None
    for loss in (first, second):
        graph = ts.graph(loss)
        assert all(task.operation is not None for task in graph.tasks)
        assert by_path(graph).keys() >= {"head", "blocks.0.up"}
    assert_nothing_left_behind()
    with ts.capture():
        third = model(torch.ones(1, 4))
    assert by_path(ts.graph(third)) == by_path(ts.graph(second))


def test_several_models_are_told_apart_and_a_loss_module_changes_no_names() -> None:
    class Generator(nn.Linear):
        pass

    class Discriminator(nn.Linear):
        pass

    generator, discriminator = Generator(2, 2), Discriminator(2, 2)
    with ts.capture():
        loss = nn.MSELoss()(discriminator(generator(torch.ones(1, 2))), torch.zeros(1, 2))
    names = {task.parameter for task in ts.graph(loss).tasks} - {None}
    assert names == {"Generator.weight", "Generator.bias", "Discriminator.weight", "Discriminator.bias"}
    with ts.capture():
        loss = nn.MSELoss()(generator(torch.ones(1, 2)), torch.zeros(1, 2))
    assert {task.parameter for task in ts.graph(loss).tasks} - {None} == {"weight", "bias"}
    assert "MSELoss" in by_path(ts.graph(loss))


def test_parts_of_a_model_called_on_their_own_are_named_after_the_model_given() -> None:
    model = Model()
    with ts.capture(model):
        loss = model.head(model.blocks[1](torch.ones(1, 4))).sum()
    assert by_path(ts.graph(loss)).keys() >= {"blocks.1.up", "head"}


def test_a_forward_that_raises_gives_the_graph_up_to_the_error() -> None:
    model = Model()
    model.head = nn.Linear(5, 1)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), ts.capture() as tape:
        model(torch.ones(2, 4))
    graph = tape.graph()
    assert isinstance(tape.error, RuntimeError)
    assert by_path(graph).keys() >= {"blocks.0", "blocks.1", "blocks.1.down"}
    assert graph.tasks[graph.roots[0].task].name == "AddBackward0"
    assert graph.raised is not None
    says(graph.raised, "RuntimeError", "test_capture.py")
    assert "forward until RuntimeError at test_capture.py:" in graph.to_svg()
    assert_nothing_left_behind()


def test_values_that_only_a_frame_holds_are_in_the_graph_up_to_the_error() -> None:
    a, b = torch.ones(2, 2, requires_grad=True), torch.ones(3, 3)
    with pytest.raises(RuntimeError), ts.capture(every_call=True) as tape:
        (a @ a) @ b
    assert [task.name for task in tape.graph().tasks] == ["MmBackward0", "torch::autograd::AccumulateGrad"]


def test_a_module_that_raises_and_is_caught_does_not_mislead_what_follows() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("caught by the caller")

    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fails, self.layer = Fails(), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            try:
                x = self.fails(x)
            except KeyError:
                x = x.exp()
            return self.layer(x).sum()

    with ts.capture():
        loss = Tries()(torch.ones(1, 2, requires_grad=True))
    assert by_path(ts.graph(loss)) == {
        "": ["ExpBackward0", "SumBackward0"],
        "layer": ["TBackward0", "AddmmBackward0"],
    }


def test_a_tape_without_an_error_has_no_graph_of_its_own() -> None:
    with ts.capture() as tape:
        torch.ones(1, requires_grad=True).exp()
    with raises(ValueError, "ts.graph(loss)"):
        tape.graph()


def test_a_capture_inside_another_knows_its_own_error() -> None:
    x = torch.ones(2, requires_grad=True)
    with ts.capture():
        before = x.sin()
        with pytest.raises(KeyError), ts.capture() as inner:
            fail_with(before.exp())
    assert [task.name for task in inner.graph().tasks][:2] == ["SinBackward0", "ExpBackward0"]


def fail_with(value: object) -> None:
    raise KeyError


def test_a_capture_that_failed_holds_no_graph_once_its_tape_is_gone() -> None:
    freed = []

    class Token:
        def __del__(self) -> None:
            freed.append(1)

    def forward() -> None:
        y = torch.ones(2, requires_grad=True).exp()
        y.grad_fn.metadata["token"] = Token()
        fail_with(y)

    def captured() -> int:
        try:
            with ts.capture() as tape:
                forward()
        except KeyError:
            return len(tape.graph())
        raise AssertionError

    assert captured() == 2
    gc.collect()
    assert freed == [1]


def test_a_container_that_cannot_be_read_does_not_replace_the_users_error() -> None:
    class Unreadable(dict):
        def values(self):
            raise OSError("disk gone")

    def forward(kept: Unreadable) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), ts.capture():
        forward(Unreadable())


def test_a_capture_cannot_be_opened_twice_at_once(snapshot: Snapshots) -> None:
    capture = ts.capture()
    with capture, raises(RuntimeError, "ts.capture()") as refused:
        capture.__enter__()
    snapshot("capture", refused.value)
    assert_nothing_left_behind()
    with capture:
        pass
    assert_nothing_left_behind()


def in_a_new_thread(work: Callable[[], object]) -> object:
    """Return the result of `work` in a new thread, whose sequence numbers start at 0."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_what_another_thread_made_and_a_captured_operation_was_given_stays_foreign() -> None:
    def captured() -> tuple[Tensor, Tensor]:
        given = in_a_new_thread(lambda: torch.ones(1, 4, requires_grad=True).exp().cos())
        layer = nn.Linear(4, 4)
        with ts.capture():
            return given, layer(given)

    given, loss = in_a_new_thread(captured)
    graph = ts.graph(loss)
    tasks = {graph.nodes[task.id]: task for task in graph.tasks}
    cos, addmm = tasks[given.grad_fn], tasks[loss.grad_fn]
    assert cos.sequence_nr == addmm.sequence_nr == 1
    assert cos.operation is None and addmm.operation is not None


def test_a_capture_beside_the_forward_of_another_thread_warns() -> None:
    def program() -> None:
        with ts.capture():
            thread = threading.Thread(target=Model(), args=(torch.ones(2, 4),))
            thread.start()
            thread.join()

    with pytest.warns(UserWarning, match=r"Model.*another thread"):
        program()
    assert_nothing_left_behind()


def test_modules_and_functions_of_another_thread_are_left_out() -> None:
    results = []

    def elsewhere() -> None:
        results.append(Square.apply(nn.Linear(2, 2)(torch.ones(1, 2))))

    with ts.capture():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        loss = nn.Linear(2, 1)(results[0]).sum()
    graph = ts.graph(loss)
    assert [call.class_name for call in graph.calls] == ["Linear"]
    assert {task.name for task in graph.tasks if task.operation is None} >= {"SquareBackward", "AddmmBackward0"}


def test_another_threads_nodes_are_not_mixed_up_though_their_numbers_are_equal() -> None:
    """Sequence numbers count per thread: the two forwards below have nodes of equal numbers."""
    results = {}
    both_inside = threading.Barrier(2)

    def forward(name: str, captured: bool) -> None:
        x = torch.ones(2, requires_grad=True)
        if captured:
            with ts.capture():
                both_inside.wait()
                results[name] = x.exp().sin()
                both_inside.wait()
        else:
            both_inside.wait()
            results[name] = x.cos().tan()
            both_inside.wait()

    threads = [threading.Thread(target=forward, args=args) for args in (("seen", True), ("unseen", False))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    graph = ts.graph((results["seen"] + results["unseen"]).sum())
    operations = {task.name: task.operation and task.operation.name for task in graph.tasks[:6]}
    assert {task.sequence_nr for task in graph.tasks if task.name in ("ExpBackward0", "CosBackward0")} == {0}
    assert operations == {
        "ExpBackward0": "torch.Tensor.exp",
        "SinBackward0": "torch.Tensor.sin",
        "CosBackward0": None,
        "TanBackward0": None,
        "AddBackward0": None,
        "SumBackward0": None,
    }


def test_captures_of_two_threads_that_overlap_leave_nothing_behind() -> None:
    inside, outside = threading.Event(), threading.Event()

    def other() -> None:
        with ts.capture():
            inside.set()
            outside.wait()

    thread = threading.Thread(target=other)
    with ts.capture():
        thread.start()
        inside.wait()
    outside.set()
    thread.join()
    assert_nothing_left_behind()


def test_a_compiled_module_stays_one_task_with_named_parameters() -> None:
    layer = nn.Linear(3, 3)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with ts.capture():
        loss = compiled(torch.ones(1, 3)).sum()
    graph = ts.graph(loss)
    assert sum(task.kind is Kind.COMPILED for task in graph.tasks) == 1
    assert {task.parameter for task in graph.tasks} - {None} == {"weight", "bias"}


def test_a_scripted_module_is_attributed_as_a_whole() -> None:
    class Scripted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp().sin()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.jit.script(Scripted())

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).sum()

    with ts.capture():
        loss = Outer()(torch.ones(2, requires_grad=True))
    assert by_path(ts.graph(loss)) == {"inner": ["ExpBackward0", "SinBackward0"], "": ["SumBackward0"]}


class AddsNothing(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_a_renewed_capture_counts_and_names_anew_and_what_it_captured_stays_known() -> None:
    model, other = Model(), nn.Linear(4, 1)
    watching = ts.capture(every_call=True)
    with watching:
        first = model(torch.ones(2, 4)) + other(torch.ones(2, 4)).sum()
        with torch.device("cpu"), AddsNothing():  # modes which a renewal by leaving would take from the stack
            watching.renew()
            assert torch._C._len_torch_function_stack() == 3
            second = model(torch.ones(2, 4))
        assert torch._C._len_torch_function_stack() == 1
    before, after = ts.graph(first), ts.graph(second)
    assert {before.module(task).partition(".")[0] for task in before.tasks if before.module(task)} == {
        "Model",
        "Linear",
    }
    assert "head.weight" in {task.parameter for task in after.tasks}
    assert {call.index for call in after.calls} == {0}
    assert "Model.head.weight" in {task.parameter for task in before.tasks}
    assert_nothing_left_behind()


def test_a_capture_is_not_renewed_inside_a_modules_call_whose_parts_would_lose_its_name(snapshot: Snapshots) -> None:
    class Impatient(Model):
        def forward(self, x: Tensor) -> Tensor:
            watching.renew()
            return super().forward(x)

    watching = ts.capture()
    with watching:
        loss = Impatient()(torch.ones(2, 4))
    assert by_path(ts.graph(loss)).keys() == {
        "blocks.0.up",
        "blocks.0",
        "blocks.0.down",
        "blocks.1.up",
        "blocks.1",
        "blocks.1.down",
        "head",
        "",
    }
    with raises(RuntimeError) as refused:
        watching.renew()
    snapshot("capture", refused.value)


def test_a_renewed_capture_keeps_no_module_alive() -> None:
    watching = ts.capture()
    with watching:
        model = Model()
        model(torch.ones(2, 4))
        gone = weakref.ref(model)
        watching.renew()
        del model
        gc.collect()
        assert gone() is None


def inputs_of(graph: ts.Graph, name: str) -> KeptInputs:
    operation = next(task.operation for task in graph.tasks if task.name == name)
    assert isinstance(operation, Operation) and operation.inputs is not None
    return operation.inputs


def test_an_exception_that_the_program_caught_is_not_kept_with_its_frames() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            activation = x.exp()
            gone.append(weakref.ref(activation))
            raise KeyError

    gone: list[weakref.ref[Tensor]] = []
    with ts.capture():
        x = nn.Linear(3, 3)(torch.ones(2, 3))
        with suppress(KeyError):
            nn.Sequential(Raises())(x)
        assert [each() for each in gone] == [None]


def test_what_operations_were_called_with_is_kept_when_asked_for_and_not_otherwise() -> None:
    x, linear = torch.randn(2, 4, requires_grad=True), nn.Linear(4, 3)
    with ts.capture():
        plain = linear(x).sum()
    assert all(task.operation.inputs is None for task in ts.graph(plain).tasks)
    with ts.capture(keep_inputs=True):
        loss = linear(x).sum()
    kept = inputs_of(ts.graph(loss), "AddmmBackward0").tensors
    assert [each.name for each in kept] == ["input", "weight", "bias"]
    assert [each.tensor.data_ptr() for each in kept] == [
        x.data_ptr(),
        *(each.data_ptr() for each in linear.parameters()),
    ]
    assert all(each.requires_grad and not each.modified and each.tensor.grad_fn is None for each in kept)
    with torch.no_grad():
        linear.weight.mul_(2)
    assert [each.modified for each in kept] == [False, True, False]


def test_what_is_written_in_place_is_kept_as_it_was() -> None:
    x = torch.ones(4, requires_grad=True)
    with ts.capture(keep_inputs=True):
        y = x * 2
        y.mul_(y)
        y[:2] = y[2:]
        loss = nn.functional.relu(y, True).sum()
    graph = ts.graph(loss)
    assert [each.tensor.tolist() for each in inputs_of(graph, "MulBackward0").tensors] == [[1.0] * 4]
    square = next(
        task.operation for task in graph.tasks if task.operation and task.operation.name == "torch.Tensor.mul_"
    )
    assert [each.tensor.tolist() for each in square.inputs.tensors] == [[2.0] * 4] * 2
    assert all(each.is_copy and not each.modified for each in inputs_of(graph, "ReluBackward0").tensors)


def test_a_custom_function_is_kept_with_the_names_of_its_forward() -> None:
    class Old(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values, power, *others):
            return values**power

        @staticmethod
        def backward(ctx, gradient):
            raise AssertionError("is not run")

    class New(torch.autograd.Function):
        @staticmethod
        def forward(values, factor=2.0):
            return values * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, gradient):
            raise AssertionError("is not run")

    x = torch.ones(2, requires_grad=True)
    with ts.capture(keep_inputs=True):
        loss = New.apply(Old.apply(x, 2, x)).sum()
    graph = ts.graph(loss)
    assert [each.name for each in inputs_of(graph, "OldBackward").tensors] == ["values", "others[0]"]
    assert [each.name for each in inputs_of(graph, "NewBackward").tensors] == ["values"]


def test_kept_inputs_go_with_the_graph_and_hold_nothing_of_it() -> None:
    """No collector runs: a node hides from it what it refers to, so that a cycle would stay for ever."""
    gc.collect()
    gc.disable()
    try:
        x = torch.ones(64, requires_grad=True)
        parts: list[Tensor] = []
        box = type("Box", (), {})()
        with ts.capture(keep_inputs=True):
            y = x * 1
            z = y.exp()
            y.add_(z)  # from here on y, which `exp` was given, leads to the node of `exp`
            parts += [y, z]
            out = Attach.apply(torch.cat(parts), box)
            box.kept = out  # so does an object that a Function was given
            parts.append(out)  # and a list
        storage = weakref.ref(y.untyped_storage())
        gone = [weakref.ref(each) for each in (y, z, out)]
        kept = weakref.ref(inputs_of(ts.graph(out.sum()), "CatBackward0").tensors[0].tensor)
        assert kept() is not None and storage() is not None
        del y, z, out, parts, box
        assert [each() for each in gone] == [None] * 3 and kept() is None
    finally:
        gc.enable()


class Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, box):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def test_keeping_inputs_changes_no_gradient_and_no_error() -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(8, 4)
    model(x).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with ts.capture(keep_inputs=True):
        loss = model(x)
    loss.backward()
    assert all(torch.equal(one.grad, other) for one, other in zip(model.parameters(), expected, strict=True))
    with ts.capture(keep_inputs=True):
        gradient = torch.func.grad(lambda x: (x**3).sum())(torch.full((2,), 2.0))
        with torch.no_grad():
            torch.ones(2).add_(1)
        y = torch.ones(2, requires_grad=True).exp()
        y.add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        y.sum().backward()
    assert torch.equal(gradient, torch.full((2,), 12.0))
    assert_nothing_left_behind()


def test_a_capture_that_is_forgotten_takes_all_away() -> None:
    before = in_place()
    forgotten = ts.capture()
    forgotten.__enter__()
    assert in_place() != before
    del forgotten
    gc.collect()
    assert in_place() == before
    with ts.capture():  # one that was opened meanwhile stays
        inside = in_place()
        forgotten = ts.capture()
        forgotten.__enter__()
        with ts.capture():
            del forgotten
            gc.collect()
        assert in_place() == inside
        loss = nn.Linear(2, 1)(torch.ones(1, 2)).sum()
    assert in_place() == before and any(task.call is not None for task in ts.graph(loss).tasks)


@pytest.mark.parametrize("line", range(12))
def test_an_interrupt_on_the_way_into_a_capture_leaves_nothing(line: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = in_place()
    calls = 0

    def interrupted(frame: Any, event: str, argument: Any) -> Any:
        nonlocal calls
        if "/inspector/" in frame.f_code.co_filename or "nn/modules/module" in frame.f_code.co_filename:
            calls += event == "call"
            if calls == 2 * line + 2:
                calls += 1
                signal.raise_signal(signal.SIGINT)
        return None

    sys.setprofile(interrupted)
    try:
        with suppress(KeyboardInterrupt), ts.capture():
            pass
    finally:
        sys.setprofile(None)
    gc.collect()
    assert in_place() == before
