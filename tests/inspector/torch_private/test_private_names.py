"""The table of torch's private names is whole, is true of the torch here, and is what an error is explained by."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch

import tapescope as ts
from tapescope.inspector.torch_private.private_names import CAPABILITIES, NEWEST_TESTED, explain, missing_names
from tapescope.tests.says import raises, says

ROOT = Path(__file__).parents[3]
SOURCES = [
    *ROOT.glob("*.py"),
    *(path for room in ("inspector", "engine", "widgets", "commands") for path in sorted((ROOT / room).rglob("*.py"))),
]
NAMES = [
    f"{name.rpartition('.')[0]}.{last.rstrip('?')}"
    for capability in CAPABILITIES
    for name in capability.names
    for last in name.rpartition(".")[2].split("|")
]
NOT_TORCHS = {
    *("_getframe", "_current_frames", "_replace", "_lru_cache_wrapper"),  # Python's
    *("_run_module_as_main", "_option_string_actions", "_actions", "_SubParsersAction"),  # Python's: runpy, argparse
    "_bit_generator",  # NumPy's
    *("_render_traceback_", "_showtraceback"),  # IPython's
    *("_kv_pairs", "_map"),  # HIPS autograd's
}
READERS = ("getattr", "setattr", "hasattr", "delattr")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def used_names(sources: list[str]) -> set[str]:
    """The private names of torch in these modules: dotted if reached from `torch`, else the attribute alone.

    An attribute is torch's if none of the modules defines one of that name.
    """
    trees = [ast.parse(source) for source in sources]
    own = {name for tree in trees for name in defined(tree)}
    found = {name.partition(".__")[0] for tree in trees for name in _used(tree, own)}
    return {name for name in found if any(map(is_private, name.split("."))) and name not in NOT_TORCHS}


def defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
            ):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name


def _used(tree: ast.AST, own: set[str]) -> Iterator[str]:
    roots: dict[str, str] = {}
    inner: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                roots |= {
                    each.asname or "torch": each.name if each.asname else "torch"
                    for each in names
                    if of_torch(each.name)
                }
                yield from (each.name for each in names if of_torch(each.name))
            case ast.ImportFrom(module=str(module), names=names, level=0) if of_torch(module):
                roots |= {each.asname or each.name: f"{module}.{each.name}" for each in names}
                yield from (f"{module}.{each.name}" for each in names)
            case ast.Constant(value=str(text)) if re.fullmatch(r"torch(\.\w+)+", text):
                yield text
            case ast.Call(func=ast.Name(id=reader), args=[_, ast.Constant(value=str(text)), *_]) if reader in READERS:
                if is_private(text) and text not in own:
                    yield text
    for node in ast.walk(tree):  # from the outside in
        if isinstance(node, ast.Attribute) and node not in inner:
            chain = [node]
            while isinstance(below := chain[-1].value, ast.Attribute):
                chain.append(below)
            inner.update(chain)
            names = [each.attr for each in reversed(chain)]
            if isinstance(below, ast.Name) and below.id in roots:
                yield ".".join([roots[below.id], *names])
            else:
                yield from (name for name in names if is_private(name) and name not in own)


def of_torch(module: str) -> bool:
    return module.partition(".")[0] == "torch"


def is_listed(name: str) -> bool:
    """Return whether the table has a name, a part of it, or its owner; for an attribute, whether any class has it."""
    last = name.rpartition(".")[2]
    if is_private(last) and any(each.endswith(f".{last}") for each in NAMES):
        return True
    return "." in name and any(f"{name}.".startswith(f"{each}.") or each.startswith(f"{name}.") for each in NAMES)


def test_the_table_has_each_private_name_that_the_code_uses() -> None:
    used = used_names([path.read_text(encoding="utf-8") for path in SOURCES])
    assert len(used) > 100
    assert sorted(name for name in used if not is_listed(name)) == [], "add these to private_names.py"


def test_torch_has_every_name() -> None:
    missing = [name for names in missing_names().values() for name in names]
    assert missing == ([] if torch.version.cuda else ["torch._C._cuda_isHistoryEnabled"]), f"not in {torch.__version__}"


def test_a_name_that_is_not_listed_is_found() -> None:
    source = """
import torch
from torch._new import thing
from torch.utils import data
class Mine:
    def __init__(self): self._own = 1
def use(x, mine):
    torch._C._fresh(x); data._loader; x._inner; getattr(x, "_named"); mine._own; torch.nn.Linear
"""
    assert used_names([source]) == {
        "torch._new.thing",
        "torch._C._fresh",
        "torch.utils.data._loader",
        "_inner",
        "_named",
    }


LOST = {
    "torch._C._will_engine_execute_node": ("ts.graph(loss())", ()),
    "torch.nn.modules.module._has_any_global_hook": ("captured()", ("stepped()", "ts.backward(loss(), policy='bfs')")),
    "torch._C._get_graph_exec_group": (
        "ts.debug(loss(), engine='native').step()",
        ("stepped()", "ts.backward(loss(), policy='bfs', engine='direct')"),
    ),
    "torch._C._storage_Use_Count": ("ts.profile(loss)", ("ts.graph(loss())", "ts.backward(loss(), policy='bfs')")),
    "torch._C._autograd._prepare_profiler": ("ts.profile(loss)", ("ts.simulate(ts.graph(loss()))", "stepped()")),
    "torch._compile._disable_dynamo": ("ts.simulate(ts.graph(loss()))", ("ts.profile(loss)",)),
    "torch.utils.checkpoint._CachedTorchDispatchMode": ("ts.profile(checkpointed)", ("ts.profile(loss)", "stepped()")),
    "torch.nn.modules.batchnorm._NormBase": ("trained()", ("ts.profile(loss)", "stepped()")),
}
"""By name that is taken away a call that needs it, and calls that the sentence says still work."""

# A separate process for each name, because loaded modules would keep it.
WITHOUT = """
import contextlib, io, json, os, sys
import torch, torch.utils.checkpoint, torch.utils.data.dataloader

def loss():
    weight = torch.ones(2, requires_grad=True)
    return (weight.exp() * weight).sum()

def checkpointed():
    weight = torch.ones(2, requires_grad=True)
    return torch.utils.checkpoint.checkpoint(lambda x: x.exp().sin(), weight, use_reentrant=False).sum()

def captured():
    with ts.capture():
        loss()

def stepped():
    with ts.debug(loss()) as session:
        session.run()

def trained():
    model = torch.nn.Linear(2, 2)
    with ts.training(model, torch.optim.SGD(model.parameters(), lr=0.1)):
        pass

def attempt(call):
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            eval(call)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "ran"

for name, (needs, still) in json.loads(sys.argv[1]).items():
    if (child := os.fork()) == 0:
        owner, _, last = name.rpartition(".")
        delattr(eval(owner), last)
        import tapescope as ts
        print(json.dumps([name, attempt(needs), [attempt(call) for call in still]]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.heavy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="takes names away in forks")
def test_a_missing_name_stops_one_capability_and_the_sentence_says_which_and_what_still_works() -> None:
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT, json.dumps(LOST)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [name for name, _, _ in found] == [*LOST]
    for name, said, still in found:
        (capability,) = (each for each in CAPABILITIES if name in each.names)
        says(said, "RuntimeError", name, f"torch {torch.__version__}", NEWEST_TESTED)
        assert capability.title in said and capability.still in said
        assert still == ["ran"] * len(still)


@pytest.mark.filterwarnings("ignore:global module forward hook:UserWarning")
def test_a_missing_name_in_a_hook_of_a_training_loop_is_explained_where_the_block_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hook raises in the loop's own call of the model."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    name = "_are_functorch_transforms_active"

    def trained() -> None:
        with ts.training(model, optimizer), monkeypatch.context() as without:
            without.delattr(torch._C, name)
            model(torch.ones(2))

    with raises(AttributeError, name) as caught:
        trained()
    (note,) = caught.value.__notes__
    (capability,) = (each for each in CAPABILITIES if f"torch._C.{name}" in each.names)
    says(note, "tapescope:", f"torch._C.{name}", f"torch {torch.__version__}")
    assert capability.title in note


def test_an_attribute_that_torch_never_had_keeps_its_own_error() -> None:
    with pytest.raises(AttributeError) as caught:
        torch.ones(()).stpe  # type: ignore[attr-defined]  # noqa: B018
    assert explain(caught.value) is None
    with pytest.raises(ImportError) as failed:
        import_module("torch.stpe")
    assert explain(failed.value) is None


def test_another_package_that_is_missing_keeps_its_own_error() -> None:
    assert "torch._library.autograd" in NAMES
    assert explain(ModuleNotFoundError("No module named 'autograd'", name="autograd")) is None
