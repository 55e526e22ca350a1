"""The private parts of torch that tapescope needs. If one of these tests fails, torch has changed."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.graph import Node, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tapescope.inspector.torch_private import sequence_numbers as pinning
from tapescope.inspector.torch_private.allocators import _log_level, start_allocation_events, stop_allocation_events
from tapescope.inspector.torch_private.call_watchers import around_function_apply
from tapescope.inspector.torch_private.compiled import compiled_autograd_is_on
from tapescope.inspector.torch_private.distributed import flat_names, is_flattened, is_fully_sharded, sharded_parameters
from tapescope.inspector.torch_private.engine import redirect_backward, torch_backward
from tapescope.inspector.torch_private.hooks import node_hooks, set_post_accumulate_hooks
from tapescope.inspector.torch_private.nodes import call_node, input_metadata, is_cast
from tapescope.inspector.torch_private.operators import (
    FakeOperations,
    Operator,
    SeenOperations,
    operator_named,
    schema_writes,
)
from tapescope.inspector.torch_private.reference_counts import owned_alone, storage_owned_alone
from tapescope.inspector.torch_private.saved_variables import (
    FREED,
    free_saved,
    hidden_functions,
    packed_by_user,
    saved_facts,
    saved_variables,
)
from tapescope.inspector.torch_private.sequence_numbers import (
    UNNUMBERED,
    Pin,
    current_number,
    falling_numbers,
    number_of,
    pins_open,
    sequence_nr,
    sort_queue_again,
)
from tapescope.inspector.torch_private.tensors import View, detached, on_storage, version_of
from tapescope.inspector.torch_private.thread_state import (
    close_hooks,
    close_mode,
    grad_mode_switch,
    in_function_forward,
    open_hooks,
    open_mode,
    open_pack_hook,
)
from tapescope.tests.warm_python import WarmPython

from ..programs import Twice


def test_sequence_nr_is_the_number_of_the_next_node() -> None:
    expected = sequence_nr()
    node = torch.ones(1, requires_grad=True).exp().grad_fn
    assert node._sequence_nr() == expected
    assert sequence_nr() == expected + 1


def test_accumulate_grad_has_the_highest_number() -> None:
    ((accumulate, _),) = torch.ones(1, requires_grad=True).exp().grad_fn.next_functions
    assert accumulate._sequence_nr() == UNNUMBERED


def test_input_metadata_of_each_output() -> None:
    node = torch.ones(4, 2, dtype=torch.bfloat16, requires_grad=True).split(3)[0].grad_fn
    assert input_metadata(node) == (
        ((3, 2), torch.bfloat16, torch.device("cpu"), False),
        ((1, 2), torch.bfloat16, torch.device("cpu"), False),
    )


def test_asking_the_engine_for_a_gradients_dtype_runs_nothing() -> None:
    """No node, no hook, on any thread; and no memory is allocated for the gradient it is asked about."""
    leaf = torch.ones(1_000_000, dtype=torch.bfloat16, requires_grad=True)
    buffer = torch.ones(1_000_000, dtype=torch.bfloat16)
    buffer.grad_dtype = torch.float64
    buffer.mul_(leaf)
    ran: list[object] = []
    buffer.register_hook(ran.append)
    buffer.grad_fn.register_prehook(ran.append)
    buffer.grad_fn.register_hook(lambda *given: ran.append(given))
    buffer.retain_grad()
    with torch.profiler.profile(profile_memory=True) as profile:
        (facts,) = input_metadata(buffer.grad_fn)
    assert facts == ((1_000_000,), torch.float64, torch.device("cpu"), False)
    assert not ran and buffer.grad is None and leaf.grad is None
    assert max((event.self_cpu_memory_usage for event in profile.key_averages()), default=0) < 1000
    assert is_cast(buffer.grad_fn, 0, torch.float32) and not is_cast(buffer.grad_fn, 0, torch.float64)


def test_a_version_counts_what_writes_in_place_and_inference_tensors_have_none() -> None:
    tensor = torch.ones(2)
    before = version_of(tensor)
    assert version_of(tensor.add_(1)) == before + 1
    with torch.inference_mode():
        assert version_of(torch.ones(2).add_(1)) == -1


def test_metadata_of_a_node_stays_with_it() -> None:
    x = torch.ones(1, requires_grad=True).exp()
    x.grad_fn.metadata["mine"] = 1
    assert x.grad_fn.metadata == {"mine": 1}


def numbers(nodes: list[Node]) -> list[int]:
    return [node._sequence_nr() for node in nodes]


def falls(nodes: list[Node]) -> bool:
    found = numbers(nodes)
    return found == sorted(set(found), reverse=True)


@contextmanager
def pinned(nodes: list[Node]) -> Iterator[Pin]:
    pin = Pin(nodes)
    try:
        pin.open()
        yield pin
    finally:
        pin.close()


def test_pinned_numbers_fall_along_the_order_and_come_back_also_after_an_error() -> None:
    x = torch.ones(1, requires_grad=True)
    nodes = [x.exp().grad_fn, x.sin().grad_fn]
    before = numbers(nodes)
    seen = []

    def fail() -> None:
        seen.append(falls(nodes))
        assert [number_of(node) for node in nodes] == before
        raise KeyError

    with pytest.raises(KeyError), pinned(nodes):
        fail()
    assert seen == [True]
    assert numbers(nodes) == before


def test_a_pin_goes_around_the_numbers_of_another_where_its_order_allows() -> None:
    x = torch.ones(1, requires_grad=True)
    a, b, c, d, e = (each.grad_fn for each in (x.exp(), x.sin(), x.cos(), x.tan(), x * 2))
    before = numbers([a, b, c, d, e])
    with pinned([a, b, c]) as outer:
        with pinned([d, a, c, e]) as inner:
            assert falls([a, b, c]) and falls([d, a, c, e])
            assert not outer.disturbed
        assert falls([a, b, c]) and numbers([d, e]) == before[3:]
        with pinned([c, d, a]):
            assert falls([c, d, a])
        assert outer.disturbed and not inner.disturbed
        assert falls([a, b, c])
        first = Pin([c, d])
        first.open()
    assert falls([c, d]) and numbers([a, b]) == before[:2]
    first.close()
    first.close()
    assert numbers([a, b, c, d, e]) == before


@given(st.dictionaries(st.integers(0, 40), st.integers(1, 2**63 - 1), max_size=5), st.integers(1, 41))
def test_falling_numbers_keep_the_fixed_ones_or_there_are_none(fixed: dict[int, int], count: int) -> None:
    fixed = {place: number for place, number in fixed.items() if place < count}
    found = falling_numbers(count, fixed)
    places = [(-1, 2**63), *sorted(fixed.items()), (count, 0)]
    possible = all(high - low >= then - place for (place, high), (then, low) in pairwise(places))
    assert (found is not None) == possible
    if found is not None:
        assert len(found) == count and found == sorted(set(found), reverse=True)
        assert found[-1] > 0 and found[0] < 2**63
        assert {place: found[place] for place in fixed} == fixed


def test_a_nodes_own_number_is_told_while_its_pin_closes_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = torch.ones(1, requires_grad=True)
    node = get_gradient_edge(leaf).node
    pin = Pin([node])
    closing = threading.Thread(target=pin.close)

    def close_after(look: Callable[..., object]) -> Callable[..., object]:
        def looked(*args: object) -> object:
            found = look(*args)
            if not closing.ident:
                closing.start()
                closing.join(0.1)
            return found

        return looked

    monkeypatch.setattr(pinning, "current_number", close_after(current_number))
    monkeypatch.setattr(Pin, "own_number", close_after(Pin.own_number))
    pin.open()
    assert number_of(node) == UNNUMBERED
    closing.join()
    assert not pins_open()


def test_an_interrupt_anywhere_in_a_pin_leaves_numbers_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt is raised at the start of each line in turn, as a signal would."""
    x = torch.ones(1, requires_grad=True)
    nodes = [get_gradient_edge(x).node, x.sin().grad_fn, x.cos().grad_fn]
    before = numbers(nodes)
    for line in itertools.count():
        left = line
        # Unlike a signal it also comes between the last line of a `with` and its end, and leaves the lock taken.
        monkeypatch.setattr(pinning, "_pins_lock", threading.RLock())

        def trace(frame: FrameType, event: str, argument: object) -> object:
            nonlocal left
            if frame.f_code.co_filename != pinning.__file__:
                return None
            if event == "line":
                left -= 1
                if left == -1:
                    raise KeyboardInterrupt
            return trace

        old = sys.gettrace()
        try:
            sys.settrace(trace)
            Pin(nodes).during(lambda: None)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(old)
        assert numbers(nodes) == before and not pins_open(), f"interrupted at line {line}"
        if left >= 0:
            break
    assert line > 20


@pytest.mark.parametrize("waiting", [2, 3, 4, 5, 7, 10, 17, 50, 100, 257])
def test_the_engines_queue_follows_numbers_that_changed_while_tasks_waited_in_it(waiting: int) -> None:
    x = torch.ones(1, requires_grad=True)
    made = [x * number for number in range(waiting + 1)]
    nodes = [each.grad_fn for each in made]
    order: list[int] = []
    for task, node in enumerate(nodes):
        node.register_prehook(lambda gradients, task=task: order.append(task))
    wanted = random.Random(waiting).sample(range(waiting), waiting)

    def change(gradients: object) -> None:
        for rank, task in enumerate(wanted):
            nodes[task]._set_sequence_nr(10**6 - rank)
        sort_queue_again(waiting)

    nodes[-1].register_prehook(change)  # the first to run: the last that was made
    torch.stack(made).sum().backward()
    assert order == [waiting, *wanted]


def test_the_hooks_of_a_node_are_listed_in_order_and_none_is_added() -> None:
    x = torch.ones(1, requires_grad=True)
    calls = []
    node = x.exp().grad_fn
    node.register_prehook(lambda gradients: calls.append("before 1"))
    node.register_hook(lambda inputs, outputs: calls.append("after"))
    node.register_prehook(lambda gradients: calls.append("before 2"))
    before, after = node_hooks(node)
    for hook in before:
        hook(())
    for hook in after:
        hook((), ())
    assert calls == ["before 1", "before 2", "after"]
    assert node_hooks(node) == (before, after)


def test_hooks_that_wait_for_grad_are_unbound_and_bound_again() -> None:
    leaf, ran = torch.ones(2, requires_grad=True), []
    handle = leaf.register_post_accumulate_grad_hook(ran.append)
    hooks = leaf._post_accumulate_grad_hooks
    set_post_accumulate_hooks(leaf, None)
    leaf.sum().backward()
    assert not ran and leaf._post_accumulate_grad_hooks is None
    set_post_accumulate_hooks(leaf, hooks)
    leaf.sum().backward()
    assert ran == [leaf]
    handle.remove()


def test_torch_never_frees_a_leaf_to_which_its_own_post_accumulate_hook_leads() -> None:
    """C++ also refers to the hooks' dict, and `Tensor.__traverse__` reports one of the two references to the
    collector."""
    found = []
    for register in (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook):
        leaf = torch.ones(2, requires_grad=True)
        handle = register(leaf, lambda *given, leaf=leaf: None)
        found.append((weakref.ref(leaf), handle))
        del leaf
    gc.collect()
    assert [leaf() is None for leaf, _ in found] == [True, False]
    found[1][1].remove()
    assert found[1][0]() is None


def test_apply_is_watched_and_given_back() -> None:
    seen = []
    original = torch.autograd.Function.__dict__["apply"]
    argument = torch.ones(1, requires_grad=True)

    def around(*called: Any) -> Callable[[Any], None]:
        return lambda result: seen.append((*called, result))

    with around_function_apply(around):
        result = Twice.apply(argument)
    assert seen == [(Twice, (argument,), {}, result)]
    assert torch.autograd.Function.__dict__["apply"] is original
    Twice.apply(torch.ones(1))
    assert len(seen) == 1


def test_a_function_mode_sees_gradients_switched_off_and_a_functions_forward_says_that_it_runs() -> None:
    switched, inside = [], []

    class Seeing(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if function is grad_mode_switch:
                switched.append(args)
            elif function is torch.Tensor.mul:
                inside.append(in_function_forward())
            return function(*args, **(kwargs or {}))

    class Halves(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 0.5

    with Seeing():
        x = torch.ones(1, requires_grad=True)
        Halves.apply(x)
        x * 2
        with torch.no_grad():
            x * 2
        with torch.inference_mode():
            x * 2
    assert inside == [True, False, False, False]
    assert switched == [(False,), (True,)]


def test_what_a_node_saved_is_freed_and_a_second_use_raises_torchs_error() -> None:
    x, factor = torch.ones(2, requires_grad=True), torch.full((2,), 3.0)
    alive = weakref.ref(factor)
    loss = (x * factor).sum()
    del factor
    node = loss.grad_fn.next_functions[0][0]
    saved = saved_variables(node)
    assert saved and not packed_by_user(saved) and alive() is not None
    free_saved(saved)
    del saved
    assert alive() is None
    with pytest.raises(RuntimeError) as ours:
        node(torch.ones(2))
    other = (x * torch.ones(2)).sum()
    other.backward()
    with pytest.raises(RuntimeError) as torchs:
        other.backward()
    assert str(ours.value) == str(torchs.value) == FREED


def test_what_saved_tensors_hooks_packed_is_told_and_left_alone() -> None:
    x = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        y = x.exp()
    saved = saved_variables(y.grad_fn)
    assert packed_by_user(saved)
    free_saved(saved)
    assert torch.equal(y.grad_fn(torch.ones(2)), y)


def test_freeing_is_unseen_by_dispatch_modes() -> None:
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            raise AssertionError(function)

    y = torch.ones(2, requires_grad=True).exp()
    with Seen():
        free_saved(saved_variables(y.grad_fn))


def test_who_owns_a_tensor_alone() -> None:
    tensors = [torch.ones(2)]
    found = [owned_alone(tensors, 0)]
    also = tensors[0]
    found.append(owned_alone(tensors, 0))
    del also
    found.append(owned_alone(tensors, 0))
    node = (torch.ones(2, requires_grad=True) * tensors[0]).grad_fn
    found.append(owned_alone(tensors, 0))
    del node
    found.append(owned_alone(tensors, 0))
    assert found == [True, False, True, False, True]


def test_who_owns_bytes_alone() -> None:
    tensor = torch.ones(2)
    found = [storage_owned_alone(tensor)]
    view = tensor.view(2, 1)
    found.append(storage_owned_alone(tensor))
    del view
    found.append(storage_owned_alone(tensor))
    assert found == [True, False, True]


def test_compiled_autograd_is_noticed() -> None:
    assert not compiled_autograd_is_on()
    with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
        assert compiled_autograd_is_on()


def test_a_redirect_gets_each_backward_until_it_ends_and_torch_backward_goes_past_it() -> None:
    x = torch.ones(2, requires_grad=True)
    seen: list[tuple[object, ...]] = []
    end = redirect_backward(lambda run, *call: seen.append(call))
    try:
        loss = x.sum()
        loss.backward(retain_graph=True, inputs=[x])
        assert seen == [((loss,), (torch.ones(()),), True, False, (x,))] and x.grad is None
        assert torch.autograd.grad(x.sum(), x)[0].tolist() == [1, 1]
        other = torch.ones(1, requires_grad=True).sin()
        x.register_hook(lambda gradient: other.backward())
        torch_backward(x.exp().sum())
        assert len(seen) == 2 and x.grad is not None  # the one in the hook
    finally:
        end()
    x.sin().sum().backward()
    assert len(seen) == 2
    assert torch.autograd._engine_run_backward is torch.autograd.graph._engine_run_backward


def test_fake_operations_note_storages_and_leave_real_tensors_alone() -> None:
    real, x = torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)
    node = (x * real).exp().grad_fn
    state = torch.get_rng_state()
    operations = FakeOperations(torch.device("cpu"))
    with operations:
        operations.start()
        given = operations.tensor((4, 4), (4, 1), torch.float32, torch.device("cpu"))
        (gradient,) = call_node(node, [given])
        assert operations.number(gradient) == 0 and operations.number(gradient.t()) == 0
        assert operations.number(given) == -1
        real.add_(torch.rand_like(gradient))
        del gradient
        assert (operations.events, operations.nbytes) == ([0, 1, ~1, ~0], [64, 64])
        operations.start()
        assert operations.events == []
        with pytest.raises(RuntimeError):
            torch.ones(2).sum().item()
    assert torch.equal(real, torch.ones(4, 4)) and torch.equal(torch.get_rng_state(), state)
    assert type(real * 1) is torch.Tensor


def test_saved_facts_tell_nodes_apart_by_layouts_and_by_numbers() -> None:
    x, y = torch.ones(2, 3, requires_grad=True), torch.ones(3, 2, requires_grad=True).t()

    def facts(tensor: torch.Tensor) -> object:
        assert tensor.grad_fn is not None
        return saved_facts(tensor.grad_fn)

    assert facts(x.exp()) == facts(x.exp()) != facts(y.exp())
    assert facts(x.sum(0)) == facts(x.sum(0)) != facts(x.sum(1))
    assert facts(x.pow(2)) != facts(x.pow(2.0))
    freed = x.exp()
    freed.sum().backward()
    assert facts(freed) is None


def test_a_reducer_tells_its_buckets_without_copies(tmp_path: Path, fresh_python: WarmPython) -> None:
    """In a process that ends at once: gloo's destructor may wait for a thread which waits for the GIL."""
    done = fresh_python.run(Path(__file__).with_name("reducer.py"), tmp_path / "store")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_the_level_of_torchs_log_is_put_back(level: int) -> None:
    number = _log_level()
    assert number is not None, "no such level in this build"
    before, number.value = number.value, level
    try:
        start_allocation_events()
        assert number.value == max(level, 2)
        stop_allocation_events()
        assert number.value == level
    finally:
        number.value = before


class Names(SeenOperations):
    """Notes what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.names.append(str(operator))
        return operator(*args, **kwargs)


def test_operations_are_seen_below_autograd_and_autocast_and_none_of_a_backward() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    with Names() as seen:
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.nn.functional.linear(x, x)
        y.detach().sum()
        y.sum().backward()
    assert seen.names == [
        "aten._to_copy.default",  # autocast's, which it keeps for the second use
        "aten.t.default",
        "aten.mm.default",
        "aten.sum.default",
        "aten.sum.default",
        "aten.ones_like.default",
    ]


def test_what_an_operator_writes_is_in_its_schema() -> None:
    aten = torch.ops.aten
    assert schema_writes(aten.mul_.Tensor) == ((0,), ("self",))
    assert schema_writes(aten.add.out) == ((3,), ("out",))
    assert schema_writes(aten.mul.Tensor) == ((), ())
    assert schema_writes(aten.native_batch_norm.default) == ((), ())  # it does, and does not say so


def test_a_detached_tensor_counts_versions_with_its_own_also_in_a_pack_hook() -> None:
    packed = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(detached(tensor))
        return packed[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), Names():
        y = torch.ones(2, requires_grad=True).exp()
    with torch.no_grad():
        y.mul_(2)
    assert packed[0]._version == y._version == 1
    assert packed[0].grad_fn is None


def test_modes_and_hooks_are_open_between_their_two_calls() -> None:
    class Seen(SeenOperations):
        def run(self, operator: Any, args: Any, kwargs: Any) -> Any:
            seen.append(str(operator))
            return operator(*args, **kwargs)

    seen: list[str] = []
    packed: list[torch.Tensor] = []
    x = torch.ones(2, requires_grad=True)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor

    assert open_pack_hook() is None
    open_mode(Seen())
    open_hooks(pack, lambda tensor: tensor)
    try:
        assert open_pack_hook() is pack
        x.exp()
    finally:
        close_hooks()
        close_mode(None)
    x.sin().exp()
    assert open_pack_hook() is None
    assert seen == ["aten.exp.default"] and len(packed) == 1


def test_a_view_on_a_storage_is_the_tensor_again() -> None:
    x = torch.randn(4, 6, dtype=torch.complex64)
    for tensor in (x, x.t(), x[1:, ::2], x.conj(), x.conj().imag, torch.view_as_real(x)[1], x[:0]):
        again = on_storage(tensor.untyped_storage(), View.of(tensor))
        assert torch.equal(again, tensor) and again.data_ptr() == tensor.data_ptr()
        assert (again.is_conj(), again.is_neg()) == (tensor.is_conj(), tensor.is_neg())


def test_operators_are_found_by_the_name_that_they_say() -> None:
    for operator in (torch.ops.aten.mul.Tensor, torch.ops.aten._to_copy.default, torch.ops.prims.mul.default):
        assert operator_named(str(operator)) is operator
    assert operator_named("aten.none_such.default") is None
    assert operator_named("aten.mul") is None


def test_a_process_without_fsdp_has_no_sharded_parameters() -> None:
    assert sharded_parameters() == []
    assert not is_fully_sharded(torch.nn.Linear(2, 2))
    assert not is_flattened(torch.nn.Linear(2, 2))
    assert flat_names(torch.ones(2)) == ()


class _Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def test_a_function_hidden_in_copy_slices_is_found_beside_a_kept_object_whose_node_is_gone() -> None:
    kept = _Doubles.apply(torch.ones(2, requires_grad=True) * 1).grad_fn  # before torch 2.13 this keeps no node
    base = torch.ones(2, 2, requires_grad=True) * 1
    _Doubles.apply(base[0])
    found = hidden_functions([base.grad_fn])
    assert [type(each).__name__ for each in found.values()] == ["_DoublesBackward"] and kept not in found.values()
