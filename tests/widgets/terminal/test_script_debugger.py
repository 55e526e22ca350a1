"""`tapescope debug SCRIPT.py` in a separate process: scripts run as `__main__`."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tapescope.tests.says import Snapshots, says, says_none_of
from tapescope.tests.warm_python import Started, WarmPython, warm_python

pytestmark = pytest.mark.heavy

PROMPT = "(tapescope) "

NET = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(nn.functional.dropout(self.up(x).relu(), 0.2))  # the line of dropout

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        x = self.blocks[0](x)
        x = checkpoint(self.blocks[1], x, use_reentrant=False)
        return self.head(x)
"""
TRAIN = """
import sys
import torch
from net import Net  # beside the script

assert __name__ == "__main__" and sys.modules["__main__"].Net is Net and __file__.endswith("train.py")
torch.manual_seed(3)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=float(sys.argv[2]))

def train_step(step):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item())

for step in range(3):
    train_step(step)
torch.save(model.state_dict(), sys.argv[1])
print("random", torch.rand(1).item())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


CONSOLE_SCRIPT = "import sys; from tapescope.__main__ import main; sys.argv[0] = 'tapescope'; sys.exit(main())"


class Debug:
    """`tapescope debug` without a terminal."""

    def __init__(self, python: WarmPython) -> None:
        self._python = python

    def start(self, *arguments: str | Path, typed: str = "") -> Started:
        return self._python.start("-c", CONSOLE_SCRIPT, "debug", *arguments, environment=environment(), typed=typed)

    def __call__(self, *arguments: str | Path, typed: str = "") -> subprocess.CompletedProcess[str]:
        return self.start(*arguments, typed=typed).end()

    def beside_python(self, script: Path, *arguments: str, typed: str = "") -> list[subprocess.CompletedProcess[str]]:
        """The script as Python runs it, and debugged."""
        debugged = self.start(script, *arguments, typed=typed)
        return [python(script, *arguments), debugged.end()]


@pytest.fixture(scope="module")
def debug() -> Iterator[Debug]:
    ours = (
        f"tapescope.{name}"
        for name in ("commands.user_script", "widgets.terminal.prompt", "widgets.terminal.script_debugger")
    )
    torchs = ("torch.fx.experimental.symbolic_shapes", "torch._dynamo")  # for a first backward, and optimizer
    with warm_python(*ours, *torchs) as python:
        yield Debug(python)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return kept | {"TERM": "dumb"}


def python(script: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(),
    )


def without_prompts(printed: str) -> list[str]:
    """Return the output of the script itself."""
    return [line for line in printed.splitlines() if line.startswith(("step ", "random "))]


STEPPING = "s\nwhere\nqueue\ns 3\nmemory\nn\np loss.item()\nback 2\nsaved\ninfo\nb blocks.0.up\nc\nc\nc\ndelete 1\nc\n"


WAYS = {
    "stepping and going back": ([], STEPPING + "c\n" + "s 5\nback 5\nout\nout\nout\nc\n"),
    "native, breakpoints": (["--engine", "native", "--break", "blocks.1", "--skip", "1"], "c\n" * 40),
    "watching": (["--watch", "nan or norm>1e9"], ""),
    "detach": (["-c", "c", "-c", "s"], "detach\n"),
}


@pytest.mark.parametrize(
    "ways", [("stepping and going back", "detach"), pytest.param((*WAYS,), marks=pytest.mark.slow)], ids=["two", "all"]
)
def test_a_debugged_training_has_the_weights_of_a_plain_one(debug: Debug, folder: Path, ways: tuple[str, ...]) -> None:
    script = folder / "train.py"
    started = {
        way: debug.start(*options, script, folder / f"{way}.pt", "0.01", typed=typed)
        for way, (options, typed) in WAYS.items()
        if way in ways
    }
    plain = python(script, folder / "plain.pt", "0.01")
    assert plain.returncode == 0, plain.stderr
    weights = torch.load(folder / "plain.pt")
    for way, process in started.items():
        found = process.end()
        of_script = [line for line in found.stderr.splitlines() if not line.startswith("tapescope: ")]
        assert (found.returncode, of_script) == (0, plain.stderr.splitlines()), way
        assert without_prompts(found.stdout) == without_prompts(plain.stdout), way
        debugged = torch.load(folder / f"{way}.pt")
        assert weights.keys() == debugged.keys() and all(torch.equal(weights[name], debugged[name]) for name in weights)


def test_each_backward_opens_with_modules_lines_and_variables_of_its_own_step(debug: Debug, folder: Path) -> None:
    typed = "".join(f"break grad:blocks.0.down.*\nc\nwhere\np step\ndelete {step}\nc\n" for step in (1, 2, 3))
    said = debug(folder / "train.py", folder / "w.pt", "0.1", typed=typed).stdout.split(PROMPT)
    headings = [each for each in said if "\nbackward " in f"\n{each}"]
    assert [re.search(r"backward (\d)", each)[1] for each in headings] == ["1", "2", "3"]  # type: ignore[index]
    # A step of the loop is counted from 0, by the optimizer steps before it.
    assert [re.findall(r"(\d) optimizer step", each) for each in headings] == [[], ["1"], ["2"]]
    for each in headings:
        says(each, "train.py:12")
    wheres = [each for each in said if each.startswith("where\n")]
    assert len(wheres) == 3
    for each in wheres:
        says(each, "blocks.0.down.bias", "20th", "net.py:13", "blocks.0", "Block")
        says(each, "blocks.0.down (Linear)\n")  # the first call of it: the capture was renewed
    assert [each for each in said if each.startswith("p step")] == [f"p step\n{step}\n" for step in range(3)]


def test_breakpoints_last_from_one_backward_to_the_next_and_wait_quietly(
    debug: Debug, folder: Path, snapshot: Snapshots
) -> None:
    (folder / "two.py").write_text(
        "import torch\n"
        "w = torch.ones(2, requires_grad=True)\n"
        "for make in (lambda: w.exp().sum(), lambda: w.log().sum(), lambda: w.exp().sum(), lambda: w.sin().sum()):\n"
        "    make().backward()\n"
    )
    typed = "stops\nc\ndisable 1\nc\nstops\nc\n"
    found = debug("--break", "Log", "--break", "kind:Exp", "--break", "Tanh", folder / "two.py", typed=typed)
    said = found.stdout.split(PROMPT)
    says(said[0], "backward 1", "breakpoint 2", "kind:Exp", "ExpBackward0")
    rows = [line.split() for line in said[1].splitlines()[2:]]
    assert [(row[0], row[-1]) for row in rows] == [("1", "pending"), ("2", "1"), ("3", "pending")]
    says(said[2], "backward 2", "breakpoint 1", "Log", "LogBackward0")
    says(said[4], "backward 3", "breakpoint 2", "kind:Exp", "ExpBackward0")
    rows = [line.split() for line in said[5].splitlines()[2:]]
    assert [(row[0], row[3]) for row in rows] == [("1", "no"), ("2", "yes"), ("3", "yes")]
    assert len(said) == 7 and found.returncode == 0
    lines = found.stderr.splitlines()
    assert all(line.startswith("tapescope: ") for line in lines)
    for line, name in zip(lines, ("Log", "Tanh", "Tanh"), strict=True):
        says(line, f"break {name}", f'"{name}"')
    snapshot("debug", found.stderr)
    snapshot("debug", f"{said[0]}\n{said[1]}")


NO_SUCH = """
import sys, torch
w = torch.ones(2, requires_grad=True)
for step in range(2):
    w.exp().sum().backward()
    print("step", step, file=sys.stderr)
if len(sys.argv) > 1:
    sys.exit(int(sys.argv[1]))
"""


def test_a_breakpoint_that_matches_nothing_is_told_at_once_and_ends_with_code_2(
    debug: Debug, tmp_path: Path, snapshot: Snapshots
) -> None:
    script = tmp_path / "script.py"
    script.write_text(NO_SUCH)
    for arguments, code in (([], 2), (["0"], 2), (["3"], 3)):
        found = debug("--break", "Exq", script, *arguments)
        assert found.returncode == code and PROMPT not in found.stdout
        first, *steps, end = [*found.stderr.splitlines(), *([""] if code == 3 else [])]
        assert steps == ["step 0", "step 1"] and (end == "") == (code == 3)
        for line in (first, end or first):
            assert line.startswith("tapescope: ")
            says(line, "break Exq", '"Exq"', "Exp")
        assert first != end
        if not arguments:
            snapshot("debug", f"{first}\n{end}")
    assert debug("--break", "Exq", "--break", "Exp", script, typed="c\nc\n").returncode == 0
    assert debug("--break", "Exq", "--break", "Exp", script, typed="q\n").returncode == 0


def test_a_script_that_no_stop_has_stopped_says_so_and_what_the_script_took(debug: Debug, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(NO_SUCH)
    found = debug("--watch", "nan", script)
    assert found.returncode == 0 and PROMPT not in found.stdout
    says(found.stderr.splitlines()[-1], "2 backwards", "watchpoint")
    assert debug("--break", "Exp", script, typed="c\nc\n").stderr.splitlines() == ["step 0", "step 1"]
    script.write_text(NO_SUCH.replace("if len(sys.argv) > 1:", "if False:"))
    passed = debug(script, "--watch", "nan", typed="c\nc\n")
    says(passed.stderr.splitlines()[0], "--watch", "script.py")
    assert passed.returncode == 0


def test_while_it_only_watches_no_statistics_are_recorded_and_natively_nothing(
    debug: Debug, tmp_path: Path, snapshot: Snapshots
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\nw = torch.ones(2, requires_grad=True)\n(w.exp() * 2).sum().backward()\n")
    watch = "--watch", "norm>2"
    asked = {
        "native": [*watch, "--engine", "native"],
        "direct": [*watch, "--engine", "direct"],
        "a breakpoint, too": [*watch, "--break", "Tanh"],
    }
    said = {how: debug(*given, script, typed="info\n").stdout for how, given in asked.items()}
    for each in said.values():
        says(each, "norm>2", "MulBackward0", "2nd", "script.py:3")
    says_none_of(said["native"], "2 float32 cpu")
    says(said["direct"], "2 float32 cpu\n")
    says_none_of(said["direct"], "min", "max")
    says(said["a breakpoint, too"], "min", "max")
    for each in said.values():
        snapshot("debug", re.sub(r"(sequence number +)\d+", r"\1NUMBER", each))


def test_statements_change_the_variables_of_the_function_that_called_backward(debug: Debug, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "rate = 'the module has one, too'\n"
        "def train(rate):\n"
        "    w = torch.ones(2, requires_grad=True)\n"
        "    (w * 2).sum().backward()\n"
        "    print('rate', rate, w.grad.tolist())\n"
        "train(0.1)\n"
        "print(rate)\n"
    )
    found = debug(script, typed="p sorted(locals())\nrate = 7\n!w.requires_grad\nc\nc\n")
    assert f"{PROMPT}p sorted(locals())\n['rate', 'w']\n" in found.stdout
    assert f"{PROMPT}!w.requires_grad\nTrue\n" in found.stdout
    assert found.stdout.endswith("rate 7 [2.0, 2.0]\nthe module has one, too\n")


def test_a_nan_is_found_where_log_of_zero_made_it(debug: Debug, folder: Path) -> None:
    (folder / "entropy.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Entropy(nn.Module):\n"
        "    def forward(self, p):\n"
        "        return -(p * p.log()).sum()  # log(0)\n"
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.linear = nn.Linear(3, 3)\n"
        "        self.entropy = Entropy()\n"
        "    def forward(self, x):\n"
        "        return self.entropy(self.linear(x).relu())\n"
        "torch.manual_seed(0)\n"
        "model = Model()\n"
        "for step in range(2):\n"
        "    model(torch.ones(1, 3) * step).backward()\n"
        "    print('step', step)\n"
    )
    found = debug("--watch", "nan", folder / "entropy.py", typed="list\nwhere\nq\n")
    stop, *rest = found.stdout.split(PROMPT)
    says(stop, "watchpoint 1", "nan", "LogBackward0", "entropy", "entropy.py:5")
    assert "5 ->         return -(p * p.log()).sum()  # log(0)" in rest[0]
    assert rest[1].startswith("where\n> ") and "LogBackward0" not in rest[1].splitlines()[1]
    assert found.returncode == 0 and "step 1" not in found.stdout


ENDS = """
import sys

how = sys.argv[1]
if how == "raises":
    raise ValueError("before")
if how == "own hook":
    sys.excepthook = lambda kind, error, frames: print("hook", kind.__name__, frames.tb_frame.f_lineno, frames.tb_next)
    raise ValueError
if how == "exits":
    sys.exit(5)
if how == "says why":
    sys.exit("no data")

import torch

class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("in the backward")

def backward():
    Raises.apply(torch.ones(3, requires_grad=True)).sum().backward()

if how == "no graph":
    torch.ones(1).backward()
if how == "backward":
    backward()
if how == "caught":
    try:
        backward()
    except KeyError as error:
        print("caught", error)
"""


SLOW_ENDS = ("own hook", "exits", "says why", "no graph", "caught")


@pytest.mark.parametrize(
    "how",
    ["raises", "backward", *(pytest.param(how, marks=pytest.mark.slow) for how in SLOW_ENDS)],
)
def test_a_script_ends_as_it_would_without_a_debugger(debug: Debug, how: str, tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    plain, found = debug.beside_python(script, how, typed="c\nc\n")
    assert found.returncode == plain.returncode
    assert found.stdout.splitlines()[-1:] == plain.stdout.splitlines()[-1:] or how == "backward"
    if how == "backward":  # the engine's own frame is not there, and a note is
        assert plain.stderr.splitlines()[-1] == "KeyError: 'in the backward'"
        *lines, error, note = found.stderr.splitlines()
        assert [line for line in plain.stderr.splitlines() if line.startswith("  File") and "graph.py" not in line] == [
            line for line in lines if line.startswith("  File")
        ]
        assert error == "KeyError: 'in the backward'"
        says(note, "tapescope: ", "RaisesBackward", "2nd", "ends.py:27")
    else:
        assert found.stderr == plain.stderr


def test_a_script_that_can_not_be_compiled_shows_its_own_line(debug: Debug, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def f(:\n")
    plain, found = debug.beside_python(script)
    assert (found.returncode, found.stdout, found.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_quit_ends_the_script_for_good_and_close_only_the_backward(debug: Debug, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "w = torch.ones(2, requires_grad=True)\n"
        "try:\n"
        "    for step in range(3):\n"
        "        try:\n"
        "            w.exp().sum().backward()\n"
        "        except BaseException as error:\n"
        "            print('swallowed', type(error).__name__, isinstance(error, SystemExit))\n"
        "        print('grad', w.grad)\n"
        "finally:\n"
        "    print('cleaned up')\n"
    )
    found = debug(script, typed="s\nclose\nq\n")
    assert "grad None" in found.stdout
    assert found.stdout.count("swallowed Quit True") == 2 and found.stdout.count(PROMPT) == 3
    assert found.stdout.endswith("cleaned up\n") and found.returncode == 0
    script.write_text("import torch\nw = torch.ones(2, requires_grad=True)\nw.exp().sum().backward()\nprint('on')\n")
    for typed in ("exit\n", ""):
        found = debug(script, typed=typed)
        assert found.returncode == 0 and "on" not in found.stdout.split() and not found.stderr


def test_only_the_outermost_backwards_of_the_main_thread_are_debugged(debug: Debug, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import threading, torch\n"
        "from torch.utils.checkpoint import checkpoint\n"
        "w = torch.ones(2, requires_grad=True)\n"
        "thread = threading.Thread(target=lambda: w.exp().sum().backward())\n"
        "thread.start(); thread.join()\n"
        "print('other thread', w.grad.tolist())\n"
        "h = checkpoint(torch.sin, w * 1, use_reentrant=True)\n"
        "def hook(gradient):\n"
        "    with torch.enable_grad():\n"
        "        (w * 3).sum().backward()\n"
        "h.register_hook(hook)\n"
        "h.sum().backward()\n"
        "print('grad', w.grad.tolist())\n"
        "print('grad of', torch.autograd.grad(w.exp().sum(), w)[0].tolist())\n"
    )
    plain, found = debug.beside_python(script, typed="s\nc\n")
    assert found.stdout.count("backward 1:") == 1 and found.stdout.count(PROMPT) == 2
    assert [
        line for line in found.stdout.splitlines() if line in plain.stdout.splitlines()
    ] == plain.stdout.splitlines()


def test_what_the_direct_engine_refuses_the_native_one_debugs_and_it_says_so(
    debug: Debug, tmp_path: Path, snapshot: Snapshots
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, torch\n"
        "import torch.distributed as dist\n"
        f"dist.init_process_group('gloo', init_method='file://{tmp_path}/rendezvous', rank=0, world_size=1)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))\n"
        "import tapescope as ts\n"
        "try:\n"
        "    ts.debug(torch.ones(1, requires_grad=True).exp())\n"
        "except NotImplementedError as error:\n"
        "    print('ts.debug:', error)\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
        "print('grad', model.module.weight.grad.tolist())\n"
        "dist.destroy_process_group()\n"
    )
    found = debug(script, typed="s\nback\nc\n")
    raised, _, opened = found.stdout.split(PROMPT)[0].partition("\nbackward 1")
    for said, advice in ((raised, 'engine="native"'), (opened, "--engine native")):
        says(said, "DistributedDataParallel", "torch.distributed", advice)
    says(raised, "ts.debug: ")
    says(opened, "--engine native")
    says(found.stdout.split(PROMPT)[2], "*** ", "back", "--engine direct")
    says(found.stdout, "grad [[1.0, 1.0]]")
    refused = debug("--engine", "direct", script)
    says(refused.stdout, "backward 1", "DistributedDataParallel", 'engine="native"', "grad [[1.0, 1.0]]")
    assert PROMPT not in refused.stdout
    snapshot("debug", raised + opened)
    snapshot("debug", refused.stdout)


def test_a_function_can_be_debugged_as_well(debug: Debug, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 1)\n"
        "def make():\n"
        "    return model(torch.ones(1, 2)).sum(), model\n"
        "def raises():\n"
        "    h = torch.ones(2, requires_grad=True) * 2\n"
        "    h.register_hook(lambda gradient: 1 / 0)\n"
        "    return h.sum()\n"
    )
    target = tmp_path / "model.py"
    found = debug("--break", "weight", f"{target}:make", typed="where\nc\n")
    assert found.returncode == 0
    says(found.stdout, "weight", "5th", "model.py:4")
    found = debug("-c", "c", "-c", "c", f"{target}:raises")
    assert found.returncode == 1
    assert found.stderr.count("File ") == 1 and "line 7, in <lambda>" in found.stderr
    assert found.stderr.splitlines()[-2].startswith("ZeroDivisionError")


class Terminal:
    """A process with its own terminal."""

    def __init__(self, *command: str) -> None:
        self.pid, self._file = pty.fork()
        if not self.pid:
            os.environ.pop("COLUMNS", None)
            os.environ["TERM"] = "xterm-256color"
            os.execv(sys.executable, [sys.executable, *command])
        self.shown = ""

    def read_to(self, mark: str) -> str:
        """Return its output up to the mark, or to its end."""
        while mark not in self.shown:
            try:
                more = os.read(self._file, 4096)
            except OSError:  # it has ended
                more = b""
            if not more:
                break
            self.shown += more.decode()
        before, found, self.shown = self.shown.partition(mark)
        return before + found

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def interrupt(self, mark: str) -> str:
        """Presses Ctrl-C while it reads a line, until it shows the mark.

        Python misses a signal that comes after readline has shown the prompt and before it waits for a key; only the
        next signal wakes it.
        """
        self.type("\x03")
        while mark not in self.shown:
            if select.select([self._file], [], [], 3)[0]:
                self.shown += os.read(self._file, 4096).decode()
            else:
                self.type("\x03")
        return self.read_to(mark)

    def end(self) -> int:
        self.read_to("\0")
        os.close(self._file)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def wait_for_ctrl_c(indent: str) -> str:
    """Lines of a script that say READY and go on once Ctrl-C was pressed, also where it is before they wait for it."""
    lines = (
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})",
        "print('READY', flush=True)",
        "while signal.SIGINT not in signal.sigpending(): time.sleep(0.01)",
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})",
    )
    return "".join(f"{indent}{line}\n" for line in lines)


def test_at_a_terminal_tab_completes_and_ctrl_c_stops(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, time, torch\n"
        "model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))\n"
        "hidden = model[0](torch.ones(1, 2))\n"
        "def hook(gradient):\n"
        f"{wait_for_ctrl_c('    ')}"
        "hidden.register_hook(hook)\n"
        "model[1](hidden).sum().backward()\n"
        "print('grad', model[0].weight.grad is not None)\n"
    )
    terminal = Terminal("-m", "tapescope", "debug", str(script))
    says(terminal.read_to(PROMPT), "\x1b[1m> SumBackward0 (1st")
    terminal.type("whe\t2nd\n")
    assert "where 2nd" in terminal.read_to(PROMPT).splitlines()[0]
    terminal.type("break Accu\t\n")
    says(terminal.read_to(PROMPT), "breakpoint 1", "AccumulateGrad", "4 tasks")
    terminal.type("delete 1\n")
    terminal.read_to(PROMPT)
    terminal.interrupt("interrupted")
    terminal.read_to(PROMPT)
    terminal.type("c\n")
    terminal.read_to("READY")
    terminal.type("\x03")
    assert "interrupted" in terminal.read_to(PROMPT)
    terminal.type("p 6 * 7\n")
    assert "42" in terminal.read_to(PROMPT)
    terminal.type("c\n")
    assert "grad True" in terminal.read_to("grad True")
    assert terminal.end() == 0


def test_at_a_terminal_ctrl_d_ends_the_script_and_a_second_ctrl_c_interrupts_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, time, torch\n"
        "w = torch.ones(2, requires_grad=True)\n"
        "hidden = w * 2\n"
        "def hook(gradient):\n"
        "    for _ in range(2):\n"
        f"{wait_for_ctrl_c('        ')}"
        "hidden.register_hook(hook)\n"
        "try:\n"
        "    hidden.sum().backward()\n"
        "except KeyboardInterrupt:\n"
        "    print('INTERRUPTED')\n"
        "hidden.detach().requires_grad_().sum().backward()\n"
        "print('END')\n"
    )
    terminal = Terminal("-m", "tapescope", "debug", str(script))
    terminal.read_to(PROMPT)
    terminal.type("c\n")
    terminal.read_to("READY")
    terminal.type("\x03")
    terminal.read_to("READY")
    terminal.type("\x03")
    says(terminal.read_to(PROMPT), "KeyboardInterrupt", "MulBackward0", "2nd")
    terminal.type("c\n")
    assert "INTERRUPTED" in terminal.read_to(PROMPT)
    terminal.type("\x04")
    assert "END" not in terminal.read_to("\0")
    assert terminal.end() == 0
