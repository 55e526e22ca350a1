"""The code of a docs page runs as Python, from its first block to its last, given the things that the page assumes."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

import tapescope.widgets.deck.open_deck as of_decks

if __package__:
    from .shown_outputs import assert_shown
else:  # run as a script, see below
    from tapescope.tests.shown_outputs import assert_shown

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

SMALL = """
import torch
import tapescope as ts
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
x = torch.randn(4, 8)
make_loss = lambda: model(x).sum()
with ts.capture(model):
    loss = make_loss()
"""
"""A model, an input, what makes a loss, and one."""

CHUNKS = """
from collections import OrderedDict

chunks = OrderedDict((str(number), nn.Linear(8, 8)) for number in range(4))
model = nn.Sequential(OrderedDict(chunk=nn.Sequential(chunks)))
"""

LOOP = """
from torch.utils.data import DataLoader

optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(torch.randn(16, 8), batch_size=4)


def loss_of(model, batch):
    return model(batch).square().mean()


def train(batch):
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    optimizer.step()
"""
"""A training loop of four steps."""

GPT2 = """
import transformers

tiny = transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2)
model = transformers.GPT2LMHeadModel(tiny)
ids = torch.randint(0, 32, (8, 12))
data = [{"input_ids": row, "labels": row} for row in ids]
arguments = transformers.TrainingArguments(
    "trained", per_device_train_batch_size=2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True
)
"""
"""A language model of random weights, and sentences."""

TRAINER = "trainer = transformers.Trainer(model, arguments, train_dataset=data)\n"

LIGHTNING = """
import logging
import warnings

import pytorch_lightning as lightning
from torch.utils.data import DataLoader

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="pytorch_lightning")


class MyModule(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))

    def training_step(self, batch, number):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def make_trainer():
    return lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )


batch = torch.randn(4, 8)
loader = DataLoader(torch.randn(16, 8), batch_size=4)
trainer, module = make_trainer(), MyModule()
"""

DDP = """
from torch import distributed

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(model)
train_batch = train


def train():
    for batch in loader:
        train_batch(batch)
"""
"""One rank, alone."""

WRITER = """
class SummaryWriter:
    told = 0

    def add_scalar(self, tag, value, step):
        self.told += 1

    def add_text(self, tag, text, step):
        self.told += 1


writer = SummaryWriter()
"""


ACCELERATE = """
from accelerate import Accelerator
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
loader = DataLoader(data * 3, batch_size=2, collate_fn=transformers.default_data_collator)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
batch = next(iter(loader))
"""

HIPS = """
import autograd.numpy as np

w, x = np.ones((8, 8)), np.ones((4, 8))
fun = lambda w, x: np.sum(np.tanh(np.dot(x, w)))
"""

SECOND = """
from autograd import grad

v = np.ones((8, 8))
loss = lambda w: fun(w, x)
"""

ENSEMBLE = """
import torch
import tapescope as ts
from torch import nn


class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)) for _ in range(8))

    def forward(self, x):
        return sum(member(x) for member in self.members)


model, x = Ensemble(), torch.randn(4, 16)
make_loss = lambda: model(x).sum()
with ts.capture(model):
    loss = make_loss()
"""

BAD_STEP = """
def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


model = make_model()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
batches = torch.randn(160, 8)
batches[4 * 37] = torch.inf
loader = DataLoader(batches, batch_size=4)
"""
"""The batch of step 37 is not finite."""

ENCODER = (
    """
import torch
import tapescope as ts
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.softmax(self.fc(x), -1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x):
        for layer in self.layer:
            x = layer(x)
        return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.head = Encoder(), Layer(), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.decoder(self.encoder(x)))
"""
    + "\n" * 83
    + """

model, x = Model(), torch.randn(4, 8)
make_loss = lambda: model(x).square().sum()  # is line 120
with ts.capture(model):
    loss = make_loss()
"""
)

LOOP_OF_BLOCKS = """
import torch

loader = [torch.randn(8, 128, 64) for _ in range(2)]
loss_of = lambda model, batch: model(batch).square().mean()
"""

HIDDEN = """
model.encoder.register_forward_hook(lambda module, inputs, output: globals().update(hidden=output))
"""

FITS = """
import torch
import tapescope as ts
from torch import nn

make_model = lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
make_batch = lambda size=8: torch.randn(size, 8)
loss_of = lambda model, batch: model(batch).square().mean()
"""

LOOP_OF_FITS = """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = [make_batch() for _ in range(4)]


def train(batch):
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    optimizer.step()


batch = loader[0]
"""

EXPORTS = (
    WRITER
    + """
train_batch = train


def train():
    for batch in loader:
        train_batch(batch)


train_step = lambda: train_batch(next(iter(loader)))
with ts.record_steps(steps=3) as steps:
    train()
with ts.training(model, optimizer) as training:
    train()
"""
)

GPT2_CLASSES = "import transformers\n"

FIT = """
from types import SimpleNamespace


def fit(model):
    for _ in range(3):
        model(x).sum().backward()


trainer = SimpleNamespace(fit=fit)
"""


def first_backwards() -> list[str]:
    """The cells of the table in which the page on PR #4746 says what its block computes."""
    page = (DOCS / "explanation/pr4746.md").read_text(encoding="utf-8")
    return re.findall("Sin|Cos", page.partition("| the first of the two backwards")[2].partition("\n\n")[0])


@dataclass(frozen=True)
class Page:
    """The things that a page assumes.

    Attributes:
        before: the code that makes it, in a file model.py.
        blocks: what is run before the block of that number.
        after: what holds when the page has run.
        left_out: blocks that can't run here, and why.
        raises: blocks that end in an error, which the page shows.
        shows_decks: whether it is read where decks are shown.
        quick: whether it is over in a second.
    """

    before: str = SMALL
    blocks: dict[int, str] = field(default_factory=dict)
    after: str = ""
    left_out: dict[int, str] = field(default_factory=dict)
    shows_decks: bool = False
    raises: dict[int, str] = field(default_factory=dict)
    quick: bool = False


PAGES = {
    "README": Page("from torch import nn\n", shows_decks=True),
    "explanation/accumulation": Page(blocks={1: HIPS, 2: SECOND}),
    "explanation/pr4746": Page(
        "import torch\n\nimport tapescope as ts\n",
        after=f"assert list(ran_first.values()) == {first_backwards()}\n",
        quick=True,
    ),
    "guides/batching": Page(ENSEMBLE),
    "guides/black_box": Page("", after="assert again.same and again.same_loss and again.find_nan().where"),
    "guides/breakpoints": Page(ENCODER, {0: HIDDEN}),
    "guides/compare_runs": Page(""),
    "guides/compile": Page(),
    "guides/custom_function": Page(""),
    "guides/deck": Page(ENCODER, shows_decks=True),
    "guides/distributed": Page(SMALL + LOOP + DDP, {1: "loss = model(x).sum()\n"}),
    "guides/extend": Page(
        left_out={2: "needs the installed package; tests/test_entry_points.py installs one"}, quick=True
    ),
    "guides/exports": Page(SMALL + LOOP + EXPORTS),
    "guides/fits": Page(FITS),
    "guides/graph": Page(
        "",
        {2: "model = nn.Sequential(nn.Linear(8, 8), nn.Linear(7, 8))\n"},
        raises={3: "mat1 and mat2 shapes cannot be multiplied"},
        quick=True,
    ),
    "guides/memory": Page(""),
    "guides/nan": Page(""),
    "guides/no_gradient": Page(""),
    "guides/notebooks": Page(shows_decks=True, left_out={2: "belongs to Colab, on which these tests do not run"}),
    "guides/order_dependence": Page("import torch\n\nimport tapescope as ts\n"),
    "guides/orders": Page("", {1: "loss = make_loss()\n", 2: FIT, 3: "loss = make_loss()\n", 4: CHUNKS}),
    "guides/out_of_memory": Page(FITS + LOOP_OF_FITS),
    "guides/pytest": Page(
        after="test_no_nan()\ntest_each_parameter_has_a_gradient()\ntest_results_do_not_depend_on_the_order_of_tasks()\n"
    ),
    "guides/recompute": Page(
        LOOP_OF_BLOCKS + GPT2_CLASSES, {2: "optimizer = torch.optim.SGD(model.parameters(), 0.01)\n"}
    ),
    "guides/run": Page(""),
    "guides/sharing": Page(""),
    "guides/slow": Page(),
    "guides/stepping": Page(""),
    "guides/steps": Page(SMALL + LOOP + "one_step = lambda: train(next(iter(loader)))\n"),
    "guides/terminal": Page(""),
    "guides/trainers": Page(
        SMALL + GPT2 + TRAINER,
        {6: SMALL + LIGHTNING, 10: SMALL + GPT2 + ACCELERATE},
        left_out={11: "needs TensorBoard; tests/integrations has a loop with the tracker"},
        after="assert len(steps) == 3",
    ),
    "guides/training": Page(SMALL + LOOP + BAD_STEP + WRITER),
    "reference/reading_a_report": Page(""),
}


MISTAKES = {"reference/errors", "guides/what_went_wrong"}
"""Each block of it raises, and `test_errors_page.py` says what."""


def blocks_and_outputs_of(page: str) -> list[tuple[str, str]]:
    """The blocks of Python of a page, each with the output that stands directly below it, or with ""."""
    path = ROOT / "README.md" if page == "README" else DOCS / f"{page}.md"
    shown = r"^```python\n(.*?)^```\n(?:```(?:text)?\n(.*?)^```)?"
    return re.findall(shown, path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def blocks_of(page: str) -> list[str]:
    """The blocks of Python of a page."""
    return [block for block, _ in blocks_and_outputs_of(page)]


def run(page: str) -> None:
    """Run a page's blocks in one namespace, in this folder, and compare what they print with what the page shows.

    An expression alone on a line is shown, as in a notebook. A block whose first line is `# NAME.py` is a file of that
    name.
    """
    told = PAGES[page]
    names: dict[str, object] = {"__name__": "__main__", "shown": _shown}
    _run_file("model.py", told.before, names)
    for number, (block, output) in enumerate(blocks_and_outputs_of(page)):
        if number in told.left_out:
            continue
        named = re.match(r"# (\w+\.py)\n", block)
        file = named[1] if named else f"block_{number}.py"
        _run_file(f"before_{number}.py", told.blocks.get(number, ""), names)
        if "%" in {line[:1] for line in block.splitlines()}:
            shell = InteractiveShell.instance()
            shell.user_ns.update(names)
            shell.run_cell(block).raise_error()
            names.update(shell.user_ns)
        elif number in told.raises:
            with pytest.raises(RuntimeError, match=told.raises[number]):
                _run_file(file, block, names)
        else:
            with redirect_stdout(io.StringIO()) as printed:
                _run_file(file, block, names)
            if output:
                assert_shown(output, printed.getvalue(), f"{page}, block {number}")
    _run_file("after.py", told.after, names)


def _run_file(name: str, code: str, names: dict[str, object]) -> None:
    path = Path(name)
    path.write_text(code, encoding="utf-8")
    exec(compile(_Showing().visit(ast.parse(code)), str(path.resolve()), "exec"), names)


def _shown(value: object) -> None:
    repr(value)
    if not isinstance(value, type) and hasattr(value, "_repr_html_"):
        value._repr_html_()


class _Showing(ast.NodeTransformer):
    """Hands what stands alone on a line to `shown`."""

    def visit_Module(self, node: ast.Module) -> ast.Module:
        for statement in node.body:
            if isinstance(statement, ast.Expr):
                call = ast.Call(ast.Name("shown", ast.Load()), [statement.value], [])
                statement.value = ast.copy_location(call, statement.value)
        return ast.fix_missing_locations(node)


def test_each_page_that_shows_python_is_run() -> None:
    pages = ["README", *(path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md"))]
    assert {page for page in pages if blocks_of(page)} - MISTAKES == {*PAGES}
    for page, told in PAGES.items():
        assert {*told.blocks, *told.left_out} <= {*range(len(blocks_of(page)))}, page


@pytest.mark.parametrize("page", [name for name, told in PAGES.items() if told.quick])
def test_a_quick_page_runs_as_it_stands(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(page)


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("page", [name for name, told in PAGES.items() if not told.quick])
def test_a_page_runs_as_it_stands(page: str, tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, __file__, page], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-6000:]


if __name__ == "__main__":
    if PAGES[sys.argv[1]].shows_decks:
        of_decks.in_notebook = lambda: True
    run(sys.argv[1])
