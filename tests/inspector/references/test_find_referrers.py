"""The holder of a tensor is named as the user would write it, and the search has no side effects."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tapescope.inspector.references.find_referrers import Holder, who_holds
from tapescope.tests.says import Snapshots, says

BEGIN = """\
import collections, functools, sys, threading, types, weakref
import torch
from torch import nn

class Trainer:
    last = None

class Slot:
    __slots__ = ("y", "__private")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("buf", None)
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.named = nn.ModuleDict({"head": nn.Linear(2, 2)})
    def forward(self, x):
        return x

MADE = []

def made():
    y = torch.ones(3, requires_grad=True) * 2
    MADE.append(weakref.ref(y))
    return y

trainer = Trainer()
"""
LINE = BEGIN.count("\n") + 1

# A program, and the expression by which its tensor is held; or facts of a text that is not an expression alone.
CASES: dict[str, tuple[str, str | tuple[str, ...]]] = {
    "a list of dicts": ("trainer.store = [0, {'o': made()}]", "trainer.store[1]['o']"),
    "an attribute": ("trainer.hidden = made()", "trainer.hidden"),
    "a class": ("Trainer.last = made()", "Trainer.last"),
    "a slot": ("slot = Slot(); slot.y = made()", "slot.y"),
    "a private slot": ("slot = Slot(); slot._Slot__private = made()", "slot._Slot__private"),
    "deeply nested": ("store = {'a': [0, {3: (0, made())}]}", "store['a'][1][3][1]"),
    "a key of two": ("store = {('a', 1): made()}", "store['a', 1]"),
    "an object as the key": ("store = {trainer: made()}", "store[<Trainer>]"),
    "a list in a module of odd classes": (
        "ODD = type('Meta', (type,), {'__eq__': 0})('Odd', (), {})(); outs = [made()]",
        "outs[0]",
    ),
    "a key itself": ("store = {made(): 0}", ("store",)),
    "a set": ("store = {made()}", ("store",)),
    "a deque": ("cache = collections.deque([0, made()])", "cache[1]"),
    "a default dict": ("cache = collections.defaultdict(list); cache['x'].append(made())", "cache['x'][0]"),
    "a partial": ("call = functools.partial(print, made())", "call.args[0]"),
    "a partial's keyword": ("call = functools.partial(print, end=made())", "call.keywords['end']"),
    "a bound method": (
        "t = Trainer(); t.y = made(); t.__class__.run = lambda self: 0; call = t.run; del t",
        "call.__self__.y",
    ),
    "a default": ("def call(y=made()): pass", "call.__defaults__[0]"),
    "a keyword's default": ("def call(*, y=made()): pass", "call.__kwdefaults__['y']"),
    "a name beside an underscore": ("_ = y = made()", "y"),
    "IPython's last": ("_ = made()", "_"),
    "a buffer": ("trainer.m = Model(); trainer.m.buf = made()", "trainer.m.buf"),
    "a module in a list": ("m = Model(); m.layers[1].seen = made()", "m.layers[1].seen"),
    "a module in a dict": ("m = Model(); m.named['head'].seen = made()", "m.named.head.seen"),
    "a parameter's grad hook": (
        "m = Model()\ndef hooked(y):\n    def hook(g): return g + y[0].sum()\n    return hook\n"
        "m.layers[0].weight.register_hook(hooked([made()]))",
        (
            "hooked.<locals>.hook()",
            f"program.py:{LINE + 2}",
            "y[0]",
            "m.layers[0].weight._backward_hooks[*]",
        ),
    ),
    "a forward hook": (
        "m = Model()\ndef hooked(y): return lambda *a: y and None\nm.register_forward_hook(hooked(made()))",
        ("y", "hooked.<locals>.<lambda>()", f"program.py:{LINE + 1}", "m._forward_hooks[*]"),
    ),
    "a generator": (
        "def batches():\n    y = made()\n    yield\nit = batches(); next(it)",
        ("y", "batches()", f"program.py:{LINE + 2}", "it"),
    ),
    "a coroutine": (
        "@types.coroutine\ndef wait(): yield\n"
        "async def job():\n    y = made()\n    await wait()\nc = job()\nc.send(None)",
        ("y", "job()", f"program.py:{LINE + 4}", "c"),
    ),
    "a kept error": (
        "def bad():\n    y = made()\n    raise ValueError\ntry: bad()\nexcept ValueError as e: sys.last_value = e",
        ("y", "bad()", f"program.py:{LINE + 2}", "sys.last_value.__traceback__.tb_next.tb_frame"),
    ),
    "an error's argument": ("kept = ValueError('no', made())", "kept.args[1]"),
    "a local of the thread": ("tl = threading.local(); tl.val = [made()]", "tl.val[0]"),
    "a cache": (
        "@functools.lru_cache\ndef cached(): return made()\ncached()",
        ("cached",),
    ),
    "a custom Function's ctx": (
        "class Keep(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        ctx.y = [made()]\n"
        "        return x * 1\n    @staticmethod\n    def backward(ctx, g): return g\n"
        "out = Keep.apply(torch.ones(2, requires_grad=True)); node = out.grad_fn",
        "node.y[0]",
    ),
    "an object of a class nobody names": (
        "def local():\n    class Inner: last = made()\n    return Inner()\nkept = local()",
        "type(kept).last",
    ),
}


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """A module of the user's."""
    module = ModuleType("program")
    sys.modules["program"] = module
    yield module
    sys.modules.pop("program", None)
    for name in ("last_value", "last_traceback"):
        vars(sys).pop(name, None)
    vars(module).clear()


def run(module: ModuleType, source: str) -> None:
    exec(compile(BEGIN + source, "/tmp/program.py", "exec"), vars(module))


def targets(module: ModuleType) -> list[Any]:
    """The tensors of the program that are alive."""
    return [each for each in (made() for made in module.MADE) if each is not None]


def text_of(found: list[Holder]) -> str:
    (holder,) = found
    assert holder.kind == "named", holder
    return re.sub(r"_hooks\[\d+\]", "_hooks[*]", re.sub(r"\bprogram\.(?!py)", "", str(holder)))


@pytest.mark.parametrize("case", CASES)
def test_it_is_named(case: str, program: ModuleType, snapshot: Snapshots) -> None:
    source, expected = CASES[case]
    run(program, source)
    said = text_of(who_holds(targets(program)))
    if isinstance(expected, str):
        assert said == expected
    else:
        says(said, *expected)
        snapshot("holders", said)


def test_a_local_of_a_running_function_is_named_by_the_line_of_its_def(
    program: ModuleType, snapshot: Snapshots
) -> None:
    run(
        program,
        "def train(look):\n    outs = [0, made()]\n    return look()\n"
        "def inner(look):\n    kept = made()\n    def read(): return kept\n    return look()",
    )
    look = lambda: text_of(who_holds(targets(program)))  # noqa: E731
    of_train, of_inner = program.train(look), program.inner(look)
    says(of_train, "outs", "train()", f"program.py:{LINE}", "outs[1]")
    says(of_inner, "kept", "inner()", f"program.py:{LINE + 3}")
    snapshot("holders", f"{of_train}\n{of_inner}")
    assert not targets(program)  # nothing keeps them alive


def test_a_local_of_another_thread_is_named_with_it(program: ModuleType) -> None:
    run(program, "def run(going, done):\n    held = made()\n    going.set()\n    done.wait()")
    going, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=program.run, args=(going, done), name="logger")
    thread.start()
    try:
        going.wait()
        said = text_of(who_holds(targets(program)))
    finally:
        done.set()
        thread.join()
    says(said, "held", "run()", f"program.py:{LINE}", "logger")


def test_a_kept_node_and_many_targets_at_once(program: ModuleType) -> None:
    run(program, "trainer.node = made().grad_fn\ntrainer.all = [made() for _ in range(40)]")
    said = [str(each) for each in who_holds([program.trainer.node, *targets(program)])]
    assert said == ["program.trainer.node", *(f"program.trainer.all[{index}]" for index in range(40))]


def test_a_cycle_is_shown_until_it_is_collected(program: ModuleType, snapshot: Snapshots) -> None:
    gc.collect()
    gc.disable()
    try:
        run(program, "def cycle():\n    held = {'y': made()}\n    held['self'] = held['y'].seen = [held]\ncycle()")
        (holder,) = who_holds(targets(program))
        assert holder.kind == "cycle"
        says(holder, "<Tensor>.seen[0]['y']")
        snapshot("holders", holder)
        gc.collect()
        assert not targets(program)
    finally:
        gc.enable()


@pytest.mark.leaves_hooks
def test_a_hook_that_c_holds_is_named_where_no_name_leads_to_it(program: ModuleType, snapshot: Snapshots) -> None:
    source = (
        "def immortal():\n    y = torch.ones(3, requires_grad=True) * 2\n    z = y.exp()\n"
        "    MADE.append(weakref.ref(z))\n    y.register_hook(lambda g: g + z)\nimmortal()"
    )
    run(program, source)
    gc.collect()
    (holder,) = who_holds(targets(program))
    assert holder.kind == "unnamed"
    says(holder, "z", "immortal.<locals>.<lambda>()", f"program.py:{LINE + 4}", "C++")
    snapshot("holders", re.sub(r"\[\d+\]", "[*]", str(holder)))


def test_what_only_an_expression_under_way_holds_has_no_name(program: ModuleType, snapshot: Snapshots) -> None:
    run(program, "def loop(look):\n    return [made(), look()][1]")
    (holder,) = program.loop(lambda: who_holds(targets(program)))
    assert holder.kind == "unnamed" and holder.at is None
    snapshot("holders", holder)


def test_too_much_to_look_at_is_said(program: ModuleType, snapshot: Snapshots) -> None:
    run(program, "y = made()\nkept = [[y] for _ in range(500)]\nMANY = made()\nlong = MANY")
    run(program, "deep = made()\nfor _ in range(100): deep = [deep]")
    (holder,) = who_holds([each() for each in program.MADE if each() is not None], most=10)
    assert holder.kind == "bounded"
    snapshot("holders", re.sub(r"\d[\d,]*", "N", str(holder)))


def test_nothing_is_kept_alive_with_the_collector_off(program: ModuleType) -> None:
    run(program, "def work(look):\n    y = made()\n    look()\n    del y\n    return [each() for each in MADE]")
    gc.collect()
    gc.disable()
    try:
        assert program.work(lambda: who_holds(targets(program))) == [None]
        for case in ("a generator", "a forward hook", "a deque", "a parameter's grad hook"):
            run(program, CASES[case][0])
            assert [each.kind for each in who_holds(targets(program))] == ["named"]
            for name in ("it", "m", "cache"):
                vars(program).pop(name, None)
            assert not targets(program), case
    finally:
        gc.enable()


def test_a_dict_of_locals_that_the_user_keeps_is_left_to_him(program: ModuleType) -> None:
    run(program, "def work(look):\n    y = made()\n    mine = locals()\n    look()\n    return mine['y'] is y")
    assert program.work(lambda: who_holds(targets(program)))


def test_a_traced_function_keeps_its_variables(program: ModuleType) -> None:
    run(program, "def work():\n    y = made()\n    y.sum()\n    return y")
    said = []

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if event == "line" and frame.f_code.co_name == "work" and program.MADE:
            said.append([str(each) for each in who_holds(targets(program))])
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert program.work().shape == (3,)
    finally:
        sys.settrace(before)
    assert [f"local variable y of work() at program.py:{LINE}"] in said


def test_no_code_of_the_user_is_called(program: ModuleType) -> None:
    called = []

    def refused(self: Any, *arguments: Any) -> Any:
        called.append(arguments)
        raise AssertionError

    program.refused = refused  # type: ignore[attr-defined]
    program.prop = property(refused)  # type: ignore[attr-defined]
    exec(
        "def body(d): d.update(__getattribute__=refused, __getattr__=refused, __repr__=refused, __eq__=refused,"
        " __hash__=lambda s: id(s), __iter__=refused, __getitem__=refused, __len__=refused, __bool__=refused)",
        vars(program),
    )
    run(
        program,
        "import types\n"
        "def klass(base, **more): return types.new_class('Odd', (base,), {}, lambda d: (body(d), d.update(more)))\n"
        "odd, odder = klass(object, **{'__class__': prop, 'y': prop})(), klass(list)()\n"
        "object.__setattr__(odd, 'held', odder)\nlist.append(odder, klass(dict)())\n"
        "dict.__setitem__(list.__iter__(odder).__next__(), 'o', made())",
    )
    called.clear()
    assert text_of(who_holds(targets(program))) in ("odd.held[0]['o']", "odder[0]['o']")
    assert not called


@pytest.mark.heavy
def test_a_script_and_its_main_module(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        BEGIN
        + "from tapescope.inspector.references.find_referrers import who_holds\ntrainer.store = [0, {'o': made()}]\n"
        "print(who_holds([each() for each in MADE])[0])"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "trainer.store[1]['o']\n"
