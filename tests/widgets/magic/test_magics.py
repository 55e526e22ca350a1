"""The magics, in a shell of IPython and in a real kernel."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel
from torch import nn

import tapescope as ts
from tapescope.engine.session.direct_session import Stepper
from tapescope.tests.says import Snapshots, raises, says
from tapescope.tests.warm_python import WarmPython
from tapescope.widgets.deck.auto_display import latest_deck
from tapescope.widgets.magic.magics import complete, parse

pytestmark = pytest.mark.heavy

SETUP = """
import torch, ipywidgets, tapescope as ts
from torch import nn
torch.manual_seed(0)
model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(3, 4)
def last(ready, state):
    return ready[-1]
%load_ext tapescope
import gc, torch._dynamo  # as in conftest.py: sessions are not to look for hooks through all that was imported
gc.freeze()
gc.get_freeze_count = lambda: 0
"""


class Kernel:
    """A kernel, as a notebook sees it."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client

    def run(self, code: str) -> Ran:
        messages: list[dict[str, Any]] = []
        reply = self._client.execute_interactive(code, output_hook=messages.append, timeout=60)
        return Ran(reply["content"], messages)

    def click(self, button: str) -> Ran:
        """A click on a button of ipywidgets, of which this variable is a name."""
        model_id = self.value(f"{button}.model_id")
        content = {"comm_id": model_id, "data": {"method": "custom", "content": {"event": "click"}}}
        message = self._client.session.msg("comm_msg", content)
        self._client.shell_channel.send(message)
        messages: list[dict[str, Any]] = []
        while True:
            each = self._client.get_iopub_msg(timeout=30)
            if each["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                messages.append(each)
                if each["msg_type"] == "status" and each["content"]["execution_state"] == "idle":
                    return Ran({"status": "ok", "execution_count": None}, messages)

    def value(self, expression: str) -> str:
        return self.run(f"print({expression})").printed.strip()

    def completes(self, line: str) -> list[str]:
        found: list[str] = self._client.complete(line, len(line), reply=True, timeout=30)["content"]["matches"]
        return found


class Ran:
    """The results of a cell."""

    def __init__(self, reply: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        self.status = reply["status"]
        self.name = reply.get("ename")
        self.number = reply["execution_count"]
        contents = [(each["msg_type"], each["content"]) for each in messages]
        self.printed = "".join(content["text"] for kind, content in contents if kind == "stream")
        self.errors = [content for kind, content in contents if kind == "error"]
        self.shown = [content["data"] for kind, content in contents if kind == "display_data"]
        self.results = [content["data"] for kind, content in contents if kind == "execute_result"]

    @property
    def traceback(self) -> str:
        (error,) = self.errors
        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"]))

    @property
    def decks(self) -> list[str]:
        """Return the text of what was displayed as a widget."""
        return [data["text/plain"] for data in self.shown if "application/vnd.jupyter.widget-view+json" in data]


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        kernel = Kernel(client)
        assert kernel.run(SETUP).status == "ok"
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.fixture
def fresh(kernel: Kernel) -> Kernel:
    kernel.run("ipywidgets.Widget.close_all()")
    return kernel


def test_a_deck_shows_itself_once_at_the_end_of_its_cell(fresh: Kernel) -> None:
    ran = fresh.run("deck = ts.debug(model(x).sum())\nprint('after')")
    (shown,) = ran.decks
    assert shown.startswith("<Deck ")
    says(shown, "SumBackward0", "heap")
    assert any("image/svg+xml" in data for data in ran.shown), "a picture for where no page runs"
    assert fresh.run("deck.position").decks == []


@pytest.mark.parametrize(
    ("cell", "count"),
    [
        ("deck = ts.debug(model(x).sum())\ndeck", 1),
        ("deck = ts.debug(model(x).sum())\ndisplay(deck)", 1),
        ("deck = ts.debug(model(x).sum())\ndisplay(deck, deck)", 2),
        ("display(ipywidgets.HBox([ts.debug(model(x).sum())]))", 1),
        ("display(ipywidgets.Tab([ipywidgets.VBox([ts.debug(model(x).sum())])]))", 1),
        ("ts.debug(model(x).sum()).close()", 0),
        ("first = ts.debug(model(x).sum()); second = ts.debug(model(x).sum())", 2),
    ],
)
def test_a_deck_is_shown_as_often_as_is_asked_for(fresh: Kernel, cell: str, count: int) -> None:
    assert len(fresh.run(cell).decks) == count


def test_a_deck_of_a_buttons_callback_shows_itself_at_once(fresh: Kernel) -> None:
    fresh.run("button = ipywidgets.Button()\nbutton.on_click(lambda _: ts.debug(model(x).sum()))")
    assert len(fresh.click("button").decks) == 1
    assert fresh.run("1").decks == []


def test_a_cell_that_raises_after_opening_a_deck_shows_both(fresh: Kernel) -> None:
    ran = fresh.run("deck = ts.debug(model(x).sum())\n1 / 0")
    assert ran.name == "ZeroDivisionError" and len(ran.decks) == 1


def test_the_magic_captures_its_cell_and_opens_a_deck(fresh: Kernel, snapshot: Snapshots) -> None:
    ran = fresh.run(
        "%%tapescope --policy bfs --engine native --model model loss\nloss = model(x).sum()\nprint('hello')"
    )
    assert ran.printed == "hello\n"
    says(ran.decks[0], "<Deck ", "SumBackward0", "bfs", "native", 0, 10)
    snapshot("magics", ran.decks[0])
    shown = fresh.value("ts.graph(loss).tasks[0].source.short, ts.graph(loss).tasks[-1].parameter")
    assert re.fullmatch(r"In\[\d+\]:2 2\.bias", shown)
    assert fresh.run("%tapescope step 3").results[0]["text/plain"].startswith("<Task")
    says(fresh.run("%tapescope run").results[0]["text/plain"], "Run", "10 tasks")
    over = fresh.run("%tapescope step")
    assert_refused(over, 10)
    snapshot("magics", over.printed)


def test_parameters_of_the_model_outside_of_the_graph_are_noted_on_the_deck(fresh: Kernel) -> None:
    note = "__import__('tapescope').widgets.deck.auto_display.latest_deck()._live.document.content.get('note')"
    assert fresh.run("%%tapescope --model model loss\nloss = model(x).sum()").decks
    assert fresh.value(note) == "None"
    assert fresh.run("%%tapescope --model model loss\nloss = model[2](model[:2](x).detach()).sum()").decks
    says(fresh.value(note), "2 of 4 parameters", "ts.find_unused")


def test_a_magic_under_the_magic_runs(fresh: Kernel) -> None:
    ran = fresh.run("%%tapescope loss\n%%time\nloss = model(x).sum()")
    assert "Wall time" in ran.printed and len(ran.decks) == 1


def test_a_variable_may_be_a_policy(fresh: Kernel) -> None:
    says(fresh.run("%tapescope --policy=last model(x).sum()").decks[0], "<Deck ", "SumBackward0", "last")


def test_what_raises_is_shown_with_the_users_lines_as_the_user_sees_them(fresh: Kernel) -> None:
    ran = fresh.run("%%tapescope --model model loss\nh = model[0](x)\ndef f(h):\n    return h @ x\nloss = f(h).sum()")
    assert (ran.status, ran.name) == ("error", "RuntimeError")
    assert "mat1 and mat2 shapes cannot be multiplied" in ran.errors[0]["evalue"]
    assert re.findall(r"^(\S.*), line (\d+)", ran.traceback, re.MULTILINE) == [
        (f"Cell In[{ran.number}]", "5"),
        (f"Cell In[{ran.number}]", "4"),
    ]
    assert "tapescope/" not in ran.traceback and "interactiveshell" not in ran.traceback
    assert ["<Graph " in data["text/plain"] for data in ran.shown] == [True], "what had been built by then"
    assert fresh.value("torch.overrides._get_current_function_mode_stack()") == "[]"
    assert fresh.value("len(nn.modules.module._global_forward_hooks)") == "0"


def test_the_number_of_a_cell_is_its_prompts_whatever_the_past_looks_like(fresh: Kernel) -> None:
    fresh.run("In.append('from somewhere')")
    ran = fresh.run("%%tapescope loss\n1 / 0")
    fresh.run("In.pop()")
    assert f"Cell In[{ran.number}], line 2" in ran.traceback


def test_a_loss_that_the_cell_did_not_make_opens_only_while_it_can_be_run(fresh: Kernel, snapshot: Snapshots) -> None:
    fresh.run("loss = model(x).sum()")
    assert len(fresh.run("%%tapescope loss\nother = 1").decks) == 1
    fresh.run("loss.backward()")
    ran = fresh.run("%%tapescope loss\nother = 1")
    assert ran.decks == []
    assert_refused(ran, "loss")
    snapshot("magics", ran.printed)
    said = set()
    for again in ("%tapescope loss", "%%tapescope loss\nloss = model(x).sum()\nloss.backward()"):
        ran = fresh.run(again)
        assert ran.decks == []
        assert_refused(ran, "loss")
        said.add(ran.printed)
    (freed,) = said
    snapshot("magics", freed)
    assert len(fresh.run("%%tapescope loss\nloss = model(x).sum()").decks) == 1
    fresh.run("for parameter in model.parameters():\n    parameter.grad = None")


def test_a_syntax_error_is_shown_with_its_line(fresh: Kernel, snapshot: Snapshots) -> None:
    ran = fresh.run("%%tapescope loss\na = 1\nb = = 2")
    assert ran.status == "error"
    assert f"Cell In[{ran.number}], line 3" in ran.traceback and "b = = 2" in ran.traceback
    assert "magics.py" not in ran.traceback
    assert ran.printed.startswith("UsageError: ") and ran.printed.count("\n") == 1
    snapshot("magics", ran.printed)


def test_waiting_at_the_top_level_is_refused_in_a_sentence(fresh: Kernel, snapshot: Snapshots) -> None:
    ran = fresh.run("%%tapescope loss\nimport asyncio\nawait asyncio.sleep(0)\nloss = model(x).sum()")
    assert_refused(ran, "%%tapescope", "await", "ts.capture(model)", "ts.debug(loss)")
    snapshot("magics", ran.printed)
    assert "never awaited" not in fresh.run("import gc; gc.collect()").printed


def test_an_interrupt_of_the_cell_is_one(fresh: Kernel) -> None:
    ran = fresh.run("%%tapescope loss\nraise KeyboardInterrupt")
    assert ran.name == "KeyboardInterrupt" and fresh.value("1 + 1") == "2"


def test_an_error_of_a_task_is_shown_with_the_users_lines_alone(fresh: Kernel) -> None:
    fresh.run("def hook(gradient):\n    raise KeyError('in hook')\nhandle = model[0].weight.register_hook(hook)")
    fresh.run("%tapescope model(x).sum()")
    ran = fresh.run("%tapescope run")
    fresh.run("handle.remove()")
    assert ran.name == "KeyError" and "in hook(gradient)" in ran.traceback
    says(ran.traceback, "AccumulateGrad", "10th")
    assert "tapescope/" not in ran.traceback


WRONG: dict[str, tuple[object, ...]] = {
    "%tapescope": ("%tapescope?",),
    "%tapescope --what 3 loss": ("--what", "--policy, --engine, --accumulate, --release"),
    "%tapescope --policy": ("--policy",),
    "%tapescope --policy bsf x": ("'bsf'", "'bfs'", ", ".join(ts.orders.POLICIES)),
    "%tapescope --batch all x": ("--batch", "all", "auto"),
    "%tapescope --queues two x": ("--queues", "two", "one", "per-device"),
    "%tapescope --engine native --batch auto x": ("PyTorch's", "--batch", "--engine direct"),
    "%tapescope --accumulate lists x": ("accumulate", "'lists'", "'inplace', 'out_of_place', 'list'"),
    "%tapescope --engine native --release never x": ("never", "--engine direct"),
    "%tapescope --engine steam x": ("'steam'", "direct", "native"),
    "%%tapescope --model x loss\n1": ("--model x", "Tensor"),
    "%%tapescope\n1": ("%%tapescope loss",),
    "%%tapescope nothing\n1": ("'nothing'", "NameError"),
    "%tapescope help": ("%tapescope?",),
    "%tapescope steps 3": ("'steps'", "'step'", "step, over"),
    "%tapescope x 3": ("'x'", "step, over"),
    "%tapescope nothing": ("'nothing'", "step, over"),
    "%%tapescope --model made loss\nmade = model\nloss = made(x).sum()": ("'made'", "NameError", "--model"),
    "%tapescope profile loss": ("ts.profile",),
    "%tapescope x.clone().requires_grad_()": ("(3, 4)", "loss.sum()", "grad_tensors"),
    "%%tapescope x --what bfs\n1": ("SyntaxError", "<string>, line 1"),
    "%%tapescope x --policy bfs\n1": ("%%tapescope --policy bfs x",),
    "%%tapescope --policy bfs x --keep-inputs\n1": ("%%tapescope --keep-inputs x",),
    "%tapescope 5": ("int", "loss"),
    "%tapescope x": ("(3, 4)", "torch.no_grad()", ".detach()"),
    "%tapescope step": ("ts.debug(loss)", "%tapescope loss", "%%tapescope loss"),
    "%tapescope predict all": ("%tapescope predict", "'all'"),
    "%tapescope step x": ("%tapescope step", "'x'"),
    "%tapescope run fast": ("%tapescope run", "'fast'"),
    "%tapescope --keep-inputs model(x).sum()": ("--keep-inputs", "%%tapescope --keep-inputs"),
    "%tapescope advise": ("%tapescope advise",),
    "%tapescope advise nowhere": ("'nowhere'", "NameError"),
    "%tapescope advise model(x).sum()": ("make_loss", "Tensor"),
    "%tapescope export": ("%tapescope export", ".svg", ".png", ".html", ".json"),
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_one_sentence(fresh: Kernel, line: str, snapshot: Snapshots) -> None:
    ran = fresh.run(line)
    assert_refused(ran, *WRONG[line])
    snapshot("magics", ran.printed)


@pytest.mark.parametrize("verb", ["back", "run", "stop", "predict", "compare", "break 0.weight", "watch nan", "branch"])
def test_a_verb_without_a_deck_is_one_sentence(fresh: Kernel, verb: str) -> None:
    assert_refused(fresh.run(f"%tapescope {verb}"), *WRONG["%tapescope step"])


def assert_refused(ran: Ran, *facts: object) -> None:
    """Assert that a line was refused in one sentence, which has these facts."""
    assert ran.status == "error" and ran.errors == []
    assert ran.printed.startswith("UsageError: ") and ran.printed.count("\n") == 1
    says(ran.printed, *facts)


@pytest.fixture
def seen(fresh: Kernel) -> Kernel:
    """A deck whose forward was captured."""
    fresh.run("%%tapescope --keep-inputs loss\nloss = model(x).sum()")
    fresh.run("from tapescope.widgets.deck.auto_display import latest_deck")
    return fresh


def test_breakpoints_by_magic_stop_runs_and_are_a_table(seen: Kernel) -> None:
    table = seen.run("%tapescope break 0.weight").results[0]
    assert "<table" in table["text/html"]
    says(table["text/plain"], "0.weight")
    seen.run("%tapescope break TanhBackward0 if any(g.norm() > 0 and task.name for g in gradients)")
    ran = seen.run("%tapescope continue")
    says(ran.printed, "breakpoint 2", "TanhBackward0", "any(g.norm() > 0 and task.name for g in gradients)")
    assert "<Run of " in ran.results[0]["text/plain"]
    assert seen.value("latest_deck().current.name") == "TanhBackward0"
    seen.run("%tapescope disable 1")
    assert seen.value("[each.enabled for each in latest_deck().stops]") == "[False, True]"
    says(seen.run("%tapescope stops").results[0]["text/plain"], 1, "no", 2, "yes")
    seen.run("%tapescope enable 1")
    says(seen.run("%tapescope run").printed, "breakpoint 1", "0.weight", "AccumulateGrad")
    seen.run("%tapescope delete 1")
    assert seen.value("[each.number for each in latest_deck().stops]") == "[2]"


def test_an_expression_sees_the_users_variables_as_they_are_when_it_is_asked(seen: Kernel) -> None:
    seen.run("limit = 1e9")
    seen.run("%tapescope break * if max(g.abs().max() for g in gradients if g is not None) > limit")
    seen.run("limit = -1")
    seen.run("%tapescope run")
    assert seen.value("latest_deck().position") == "1"
    seen.run("%tapescope break * if hit 4")
    assert seen.value("[each.hit for each in latest_deck().stops]") == "[None, 4]"


def test_watchpoints_by_magic_stop_where_the_gradient_is_bad(seen: Kernel) -> None:
    seen.run("%%tapescope bad\nbad = (model(x) * 0).log().mul(0).sum()")
    seen.run("%tapescope watch nan inf")
    seen.run("%tapescope watch norm > 1e30 and upcast at 0")
    assert seen.value("[each.text for each in latest_deck().stops]") == "['nan, inf', 'norm>1e30 and upcast at 0']"
    ran = seen.run("%tapescope run")
    says(ran.printed, "watchpoint 1", "nan, inf", "LogBackward0")


def test_going_back_and_branches_by_magic(seen: Kernel) -> None:
    seen.run("before = [p.grad for p in model.parameters()]")
    seen.run("%tapescope step 6")
    assert seen.run("%tapescope back 2").results[0]["text/plain"].startswith("<Task")
    assert seen.value("latest_deck().position") == "4"
    assert seen.run("%tapescope branch").results[0]["text/plain"].splitlines()[1].split()[:3] == [
        "1",
        "(current)",
        "heap",
    ]
    seen.run("%tapescope scale -2.5")
    seen.run("%tapescope out")
    assert seen.value("[branch.number for branch in latest_deck().branches]") == "[1, 2]"
    assert "<table" in seen.run("%tapescope branch").results[0]["text/html"]
    seen.run("%tapescope branch 1")
    assert seen.value("latest_deck().position, [b.is_current for b in latest_deck().branches]") == "6 [True, False]"
    first = seen.value("latest_deck().order[0]")
    assert f"<Task {first} " in seen.run(f"%tapescope goto #{first}").results[0]["text/plain"]
    assert seen.value("latest_deck().position") == "0"
    seen.run("%tapescope over")
    assert seen.value("latest_deck().position") == "1"


def test_edits_by_magic_are_undone_by_restore(seen: Kernel) -> None:
    seen.run("%tapescope step 2")
    norm = seen.value("latest_deck().gradients[0].norm().item()")
    for line, expected in (("scale 2", 2 * float(norm)), ("clip 1e-3", 1e-3), ("zero", 0.0), ("restore", float(norm))):
        assert seen.run(f"%tapescope {line}").status == "ok"
        assert float(seen.value("latest_deck().gradients[0].norm().item()")) == pytest.approx(expected, rel=1e-4), line


def test_a_task_is_checked_by_magic_on_what_the_cell_kept(seen: Kernel) -> None:
    seen.run("%tapescope goto 2")
    ran = seen.run("%tapescope check").results[0]
    says(ran["text/plain"], "<Check ", "AddmmBackward0", "module 2", "]:2")
    assert "<li>" in ran["text/html"]
    assert seen.value("latest_deck().check().ok") == "True"


def test_a_task_that_is_ready_is_stepped_by_its_place(seen: Kernel) -> None:
    seen.run("%%tapescope loss\nloss = (model(x) * model(x)).sum()")
    seen.run("%tapescope step 2")
    ready = seen.value("[each.task.id for each in latest_deck().ready]")
    last = ready.strip("[]").split(", ")[-1]
    assert seen.value("latest_deck().order[-1:]") != f"[{last}]"
    assert not seen.run(f"%tapescope step #{last}").printed.startswith("UsageError")
    assert seen.value("latest_deck().order[-1:]") == f"[{last}]"


def test_a_watchpoint_may_be_an_expression(seen: Kernel) -> None:
    seen.run("%%tapescope loss\nloss = model(x).sum()")
    seen.run("limit = 1")
    seen.run("%tapescope watch if task.id >= 0 and gradient.dim() > limit")
    seen.run("%tapescope run")
    assert seen.value("latest_deck().stopped.why") == "watchpoint"


WRONG_VERBS: dict[str, tuple[object, ...]] = {
    "break": ("break",),
    "break 0.wieght": ("0.wieght", "0.weight"),
    "break 0 if task.id >": ("'task.id >'",),
    "watch": ("watch",),
    "watch nana": ("nana", "nan"),
    "stops all": ("%tapescope stops", "'all'"),
    "enable x": ("%tapescope enable", "'x'"),
    "delete 7": (7,),
    "goto": ("%tapescope goto", "53rd", "''"),
    "goto #999": (999,),
    "back 99": ("back(99)",),
    "branch 9": ("branch", 9),
    "scale much": ("%tapescope scale", "'much'"),
    "zero 3": ("%tapescope zero", "'3'"),
    "restore": ("SumBackward0", "1st"),
    "check x": ("%tapescope check", "53rd", "'x'"),
}


@pytest.mark.parametrize("line", WRONG_VERBS)
def test_what_is_wrong_with_a_verb_is_one_sentence(seen: Kernel, line: str, snapshot: Snapshots) -> None:
    ran = seen.run(f"%tapescope {line}")
    assert_refused(ran, *WRONG_VERBS[line])
    snapshot("magics", ran.printed)


def test_the_deck_sums_and_lets_go_by_the_rule_of_the_line(fresh: Kernel) -> None:
    fresh.run("%%tapescope --accumulate list --release=never loss\nloss = model(x).sum()")
    rule = "latest_deck()._live.session.accumulation"
    assert fresh.value(f"{rule}.accumulate, {rule}.release") == "list never"


def test_what_pytorchs_engine_can_not_is_one_sentence(fresh: Kernel, snapshot: Snapshots) -> None:
    fresh.run("%tapescope --engine native model(x).sum()")
    fresh.run("%tapescope step")
    for line in ("back", "branch 1", "restore"):
        ran = fresh.run(f"%tapescope {line}")
        assert_refused(ran, "PyTorch's")
        snapshot("magics", ran.printed)


def test_a_tensor_named_as_a_verb_is_a_loss(fresh: Kernel) -> None:
    assert len(fresh.run("%%tapescope out\nout = model(x).sum()").decks) == 1
    assert len(fresh.run("%tapescope out").decks) == 1
    fresh.run("del out")
    fresh.run("%tapescope out")
    fresh.run("from tapescope.widgets.deck.auto_display import latest_deck")
    assert fresh.value("latest_deck().status") == "finished"


def test_export_writes_four_kinds_of_files(fresh: Kernel, tmp_path: Path) -> None:
    fresh.run("%tapescope model(x).sum()")
    fresh.run("%tapescope run")
    for name in ("a.svg", "a.png", "a.html", "a.json"):
        assert name in fresh.run(f"%tapescope export {tmp_path / name}").results[0]["text/plain"]
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.startswith("<svg") and drawn.count('data-state="done"') == 10 and 'data-state="running"' not in drawn
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "tapescope" in (tmp_path / "a.html").read_text()
    assert len(ts.load(tmp_path / "a.json").order) == 10
    assert_refused(fresh.run("%tapescope export a.pdf"), ".svg", ".png", ".html", ".json")
    missing = fresh.run(f"%tapescope export {tmp_path / 'none' / 'a.html'}")
    assert missing.printed == f"UsageError: {tmp_path / 'none' / 'a.html'}: No such file or directory\n"


def test_compare_shows_a_table(fresh: Kernel) -> None:
    fresh.run("%tapescope model(x).sum()")
    ran = fresh.run("%tapescope compare bfs heap")
    assert "<table" in ran.results[0]["text/html"] and "bfs" in ran.results[0]["text/plain"]


def test_compare_takes_rules(fresh: Kernel) -> None:
    fresh.run("loss = sum(model(x).sum() for _ in range(4))\ndeck = None")
    fresh.run("%tapescope loss")
    fresh.run("found = %tapescope compare bfs --accumulate inplace list --release=never")
    assert fresh.value("list(found.timelines)") == "['bfs, never released', 'bfs, list, never released']"
    assert fresh.value("len({each.peak_bytes for each in found.rows})") == "2", "the list holds more"
    assert_refused(fresh.run("%tapescope compare bfs --accumulate all"), "'all'", "'list'")
    assert_refused(fresh.run("%tapescope compare --release"), "--release", "eager", "never")
    assert_refused(fresh.run("%tapescope compare --sum list"), "--sum", "--accumulate")
    assert fresh.completes("%tapescope compare bfs --accumulate inplace l") == ["list"]
    assert fresh.completes("%tapescope compare bfs --acc") == ["--accumulate"]


def test_advice_by_magic_needs_no_deck(fresh: Kernel) -> None:
    ran = fresh.run("%tapescope advise lambda: model(x).square().sum()")
    assert ran.status == "ok" and 'class="ts-advice"' in ran.results[0]["text/html"]
    assert "<Advice: " in ran.results[0]["text/plain"]


def test_memory_is_predicted_when_asked_for(fresh: Kernel, snapshot: Snapshots) -> None:
    fresh.run("long = x.requires_grad_()\nfor _ in range(5_001):\n    long = long * 1\nlong = long.sum()")
    fresh.run("%tapescope long")
    asked = fresh.run("%tapescope compare bfs")
    assert_refused(asked, "%tapescope predict")
    snapshot("magics", asked.printed)
    assert fresh.run("%tapescope predict").status == "ok"
    assert "<table" in fresh.run("%tapescope compare bfs").results[0]["text/html"]
    fresh.run("%tapescope long")
    fresh.run("%tapescope step")
    late = fresh.run("%tapescope predict")
    assert_refused(late)
    snapshot("magics", late.printed)
    fresh.run("x = x.detach(); del long")


def test_a_step_may_be_that_of_a_device(fresh: Kernel) -> None:
    fresh.run("%%tapescope loss\nloss = model(x).sum()\ndeck = None")
    assert fresh.run("%tapescope step 2 on cpu").status == "ok"
    refused = fresh.run("%tapescope step on cuda:3")
    assert_refused(refused, "cuda:3", "cpu")


def test_completion_offers_what_fits(fresh: Kernel) -> None:
    fresh.run("loss = model(x).sum()")
    assert {"bfs", "dfs", "heap"} <= set(fresh.completes("%tapescope --policy "))
    assert fresh.completes("%tapescope compare b") == ["bfs"]
    assert "predict" in fresh.completes("%tapescope pre")
    assert "loss" in fresh.completes("%%tapescope lo")
    assert {"step", "stop"} <= set(fresh.completes("%tapescope st"))
    assert fresh.completes("%tapescope --pol") == ["--policy"]
    assert "native" in fresh.completes("%tapescope --engine na")
    assert "auto" in fresh.completes("%tapescope --batch a")
    assert "per-device" in fresh.completes("%tapescope --queues p")
    assert "out_of_place" in fresh.completes("%tapescope --accumulate o")
    assert "never" in fresh.completes("%tapescope --release n")
    fresh.run("%%tapescope --model model loss\nloss = model(x).sum()")
    assert fresh.completes("%tapescope break 0.w") == ["0.weight"]
    assert "norm>" in fresh.completes("%tapescope watch no")
    fresh.run("%tapescope break 1st")
    assert "1" in fresh.completes("%tapescope disable ")
    assert fresh.completes("%%tapescope --keep") == ["--keep-inputs"]


def test_closing_the_output_closes_a_deck_that_nobody_holds(fresh: Kernel) -> None:
    unseen = "._handle_custom_msg({'kind': 'unseen'}, [])"
    fresh.run("from tapescope.widgets.deck.auto_display import latest_deck, _latest")
    for held in (
        "deck = latest_deck()",
        "box = ipywidgets.Tab([ipywidgets.HBox([latest_deck()])])",
        "decks = [{'mine': latest_deck()}]",
    ):
        fresh.run("%tapescope model(x).sum()")
        fresh.run(held)
        fresh.run(f"latest_deck(){unseen}")
        assert fresh.value("latest_deck().status") == "stopped", held
        fresh.run("latest_deck().close(); del " + held.partition(" ")[0])
    fresh.run("ts.debug(model(x).sum())")  # Out and _ hold it
    fresh.run(f"latest_deck(){unseen}")
    assert fresh.value("_latest") == "[]"


def test_what_the_first_deck_needs_is_loaded_in_the_users_own_thread(fresh: Kernel) -> None:
    fresh.run(
        "import threading, tapescope.widgets.magic.magics as magics\n"
        "loaded_in, warm_up = [], magics.warm_up_fakes\n"
        "magics.warm_up_fakes = lambda: loaded_in.append(threading.current_thread().name)\n"
        "%reload_ext tapescope"
    )
    until = time.monotonic() + 15
    while fresh.value("loaded_in") == "[]":
        assert time.monotonic() < until, "nothing was loaded"
        time.sleep(0.05)
    fresh.run("magics.warm_up_fakes = warm_up")
    assert fresh.value("loaded_in") == "['MainThread']"


def test_the_users_own_mappings_are_not_looked_into(fresh: Kernel) -> None:
    fresh.run(
        "from collections import UserDict\n"
        "from tapescope.widgets.deck.auto_display import latest_deck, _latest\n"
        "class Lazy(UserDict):\n"
        "    def values(self):\n"
        "        raise OSError('reads a file')\n"
        "lazy = Lazy(a=1)"
    )
    fresh.run("%tapescope model(x).sum()")
    fresh.run("latest_deck()._handle_custom_msg({'kind': 'unseen'}, [])")
    assert fresh.value("_latest") == "[]"
    fresh.run("del lazy")


def test_a_closed_deck_is_shown_as_text(fresh: Kernel) -> None:
    fresh.run("deck = ts.debug(model(x).sum())")
    ran = fresh.run("deck.close()\ndeck")
    assert [set(data) for data in ran.shown] == [{"text/plain"}]
    says(ran.shown[0]["text/plain"], 0, 10, "closed")
    fresh.run("del deck")


def test_a_variable_named_as_a_verb_hides_it_only_if_it_is_a_loss(fresh: Kernel) -> None:
    fresh.run("run = ts.backward(model(x).sum())")
    fresh.run("%tapescope model(x).sum()")
    assert "10 tasks" in fresh.run("%tapescope run").results[0]["text/plain"]
    fresh.run("run = model(x).sum()")
    assert len(fresh.run("%tapescope run").decks) == 1
    assert fresh.run("step = model(x).sum()").status == "ok"
    assert len(fresh.run("%tapescope step * 2").decks) == 1
    assert fresh.run("%tapescope step 3").results[0]["text/plain"].startswith("<Task")
    fresh.run("del run, step")


def test_a_verb_is_one_although_a_function_has_its_name(fresh: Kernel) -> None:
    fresh.run("from tapescope import *")
    fresh.run("%tapescope model(x).sum()")
    assert "<table" in fresh.run("%tapescope compare bfs heap").results[0]["text/html"]
    assert "<table" in fresh.run("%tapescope compare").results[0]["text/html"]


def test_nothing_of_jupyter_is_imported_with_tapescope(fresh_python: WarmPython) -> None:
    code = (
        "import sys, torch, tapescope as ts\n"
        "session = ts.debug(torch.ones(2, requires_grad=True).sum())\n"
        "print(type(session).__name__, [m for m in ('IPython', 'ipywidgets', 'anywidget', 'traitlets', 'ipykernel')"
        " if m in sys.modules])"
    )
    ran = fresh_python.run("-c", code)
    assert ran.stdout == "Stepper []\n", ran.stderr


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    """IPython without a kernel."""
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "tapescope")
    try:
        yield shell
    finally:
        shell.reset()
        InteractiveShell.clear_instance()


def test_in_ipython_without_a_kernel_it_is_the_session(shell: InteractiveShell) -> None:
    loss = nn.Linear(2, 1)(torch.ones(1, 2)).sum()
    assert type(ts.debug(loss)) is Stepper
    shell.user_ns["loss"] = loss
    assert complete(shell, type("Event", (), {"line": "%tapescope "}))[-1] == "loss"
    with pytest.raises(UsageError):
        latest_deck()
    with raises(UsageError, "ts.debug"):
        shell.run_line_magic("tapescope", "loss")


@pytest.mark.parametrize("line", ["--policy bfs --model model loss", "--policy=bfs --model=model loss"])
def test_options_with_and_without_an_equals_sign(line: str) -> None:
    found = parse(line)
    assert (found.loss, found.policy, found.engine, found.model) == ("loss", "bfs", "direct", "model")


def test_a_flag_takes_no_value() -> None:
    found = parse("--keep-inputs --policy bfs loss")
    assert (found.keep_inputs, found.policy, found.loss) == (True, "bfs", "loss")


def test_an_expression_is_kept_whole() -> None:
    assert parse("model(x, y=2).sum() + 1").loss == "model(x, y=2).sum() + 1"


CELL = "net = nn.Linear(4, 3)\nloss = net(torch.ones(2, 4)).square().sum()\n"


@pytest.fixture
def torch_shell(shell: InteractiveShell) -> InteractiveShell:
    shell.user_ns.update(torch=torch, nn=nn)
    return shell


def test_a_cell_runs_as_the_function_of_a_verb(
    torch_shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    run = torch_shell.run_cell_magic("tapescope", "--profile loss", CELL)
    says(capsys.readouterr().out, "peak")

    def make_loss() -> torch.Tensor:
        loss: torch.Tensor = nn.Linear(4, 3)(torch.ones(2, 4)).square().sum()
        return loss

    assert run.peak_bytes == ts.profile(make_loss).peak_bytes
    assert torch_shell.user_ns["loss"].grad_fn is not None  # the cell's variables are the user's
    step = (
        "if 'model' not in globals():\n    model = nn.Linear(4, 3); optimizer = torch.optim.Adam(model.parameters())\n"
        "model(torch.ones(2, 4)).sum().backward()\noptimizer.step(); optimizer.zero_grad()\n"
    )
    assert torch_shell.run_cell_magic("tapescope", "--step", step).like_before
    report = torch_shell.run_cell_magic("tapescope", "--find-nan loss", CELL.replace("sum()", "sum().neg().sqrt()"))
    says(report, "sqrt", "NaN")
    plan = torch_shell.run_cell_magic("tapescope", "--plan --model net loss.tanh()", CELL)
    assert type(plan).__name__ == "PlannedRecompute"


@pytest.mark.parametrize(
    ("line", "cell", "facts"),
    [
        (
            "--profile loss",
            CELL.replace("2, 4", "2, 5"),
            ("line 3 of the cell", "net(torch.ones(2, 5))", "RuntimeError"),
        ),
        ("--profile loss", "loss = (1\n", ("line 2 of the cell", "loss = (1")),
        ("--find-nan missing", CELL, ("missing",)),
        ("--profile", CELL, ("--profile", "%%tapescope --profile loss")),
        ("--step loss", CELL, ("--step", "no loss")),
        ("--profile --plan loss", CELL, ("--profile", "--plan")),
        ("--profile --policy bfs loss", CELL, ("--profile", "--model")),
        ("--profil loss", CELL, ("--profil", "--profile")),
    ],
)
def test_errors_of_a_cell_that_is_a_function_are_one_line(
    line: str, cell: str, facts: tuple[str, ...], torch_shell: InteractiveShell
) -> None:
    with pytest.raises(UsageError) as raised:
        torch_shell.run_cell_magic("tapescope", line, cell)
    says(raised.value, *facts)
    assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match="needs a cell"):
        torch_shell.run_line_magic("tapescope", "--profile loss")


def test_help_is_a_summary(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("tapescope", "--help")
    printed = capsys.readouterr().out
    says(printed, "--profile LOSS", "--step", "--find-nan LOSS", "--plan LOSS", "--policy", "goto")
    assert len(printed.splitlines()) <= 25
    event = type("Event", (), {"line": "%%tapescope --"})
    assert {"--profile", "--step", "--find-nan", "--plan"} <= {*complete(shell, event)}
