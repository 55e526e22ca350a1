"""The documentation says what is there, and nothing that is not. `make docs` builds it, where a warning is an error."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest
import torch

import tapescope as ts
from tapescope.engine.memory.categories import Category, Kind
from tapescope.engine.studies.order_study import WORKLOADS_STUDIED
from tapescope.widgets.deck.verbs import ROWS

from .public_names import NAMESPACES, PUBLIC_NAMES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if not path.relative_to(DOCS).parts[0].startswith("_"))
REFERENCE = DOCS / "reference"


def test_every_public_name_is_in_the_reference_once() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (REFERENCE / "api").glob("*.md")]
    named = Counter(
        name
        for text in texts
        for name in re.findall(r"^\.\. (?:auto|py:)\w+:: (?:tapescope\.)?((?:\w+\.)?\w+)$", text, re.MULTILINE)
    )
    assert dict(named) == dict.fromkeys(PUBLIC_NAMES, 1)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_uses_public_names_alone(page: Path) -> None:
    code = re.findall(r"```python\n(.*?)```|`([^`\n]+)`", page.read_text(encoding="utf-8"), re.DOTALL)
    spaces = "|".join(NAMESPACES)
    used = {name for parts in code for part in parts for name in re.findall(rf"\bts\.((?:(?:{spaces})\.)?\w+)", part)}
    assert used <= {*PUBLIC_NAMES, *NAMESPACES}


READ_ON_GITHUB = [*sorted(ROOT.glob("*.md")), *PAGES]


@pytest.fixture(scope="module")
def committed() -> set[Path]:
    """Return the files that a reader on GitHub can open."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no clone, or there is no git")
    return {(ROOT / name).resolve() for name in listed.split("\0") if name}


@pytest.mark.parametrize("page", READ_ON_GITHUB, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_leads_to_files_that_are_committed(page: Path, committed: set[Path]) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "code", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) + re.findall(r'(?:src|srcset|href)="([^"#]+)"', text)
    targets = {link: (page.parent / link).resolve() for link in links if "://" not in link}
    assert [link for link, target in targets.items() if target not in committed] == []
    assert "[](" not in text  # of which Sphinx makes the page's title, and GitHub nothing


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", DOCS / "architecture.md"], ids=lambda path: path.name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(
        r"`((?:commands|docs|engine|inspector|pictures|tests|widgets)/[\w./]*)`", page.read_text(encoding="utf-8")
    )
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def shown_by() -> list[tuple[str, str]]:
    """The items of the four sources, and where the page says that each is shown."""
    page = (DOCS / "explanation/sources.md").read_text(encoding="utf-8")
    return re.findall(r"^\| (.+?) \| (.+) \|$", page.partition("## Where each item is shown")[2], re.MULTILINE)


@pytest.mark.parametrize(
    ("item", "places"),
    [(item, places) for item, places in shown_by() if item != "item"],
)
def test_the_places_that_show_an_item_of_the_sources_exist(item: str, places: str) -> None:
    named = re.findall("`([^`]+)`( \\(needs CUDA)?", places)
    assert named
    for place, needs_cuda in named:
        if place.startswith("make "):
            target, _, only = place.removeprefix("make ").partition(" ONLY=")
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), place
            listed = (ROOT / "tests/benchmarks/__main__.py").read_text(encoding="utf-8")
            assert not only or f'    "{only}": _rows(' in listed, place
        elif place.startswith("notebooks/"):
            path, _, code = place.partition(": ")
            cells = json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]
            assert any(code in "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"), place
        else:
            path, _, name = place.partition("::")
            module = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            (test,) = [each for each in module.body if isinstance(each, ast.FunctionDef) and each.name == name]
            wants_cuda = any("mark.gpu" in ast.unparse(each) for each in test.decorator_list)
            assert wants_cuda == bool(needs_cuda), f"{place} is marked gpu, and its row has to say so"


def test_the_page_on_the_pr_has_a_row_for_each_workload_of_the_study() -> None:
    page = (DOCS / "explanation/pr4746.md").read_text(encoding="utf-8")
    table = page.partition("longest queue (BFS, DFS, HEAP) |\n")[2].partition("\n\n")[0]
    assert len(table.splitlines()) - 1 == len(WORKLOADS_STUDIED) and "LSTMCell" in table
    assert "lstm_cell" in WORKLOADS_STUDIED


def test_the_guide_to_orders_has_every_policy() -> None:
    text = (DOCS / "guides" / "orders.md").read_text(encoding="utf-8")
    named = {name for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)", row)}
    assert named == {*ts.orders.POLICIES}


def links_of(page: Path) -> set[Path]:
    """The pages to which a page links as GitHub shows it, without the contents that only Sphinx makes."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "code", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+\.md)[^)]*\)", text)
    return {(page.parent / link).resolve() for link in links if "://" not in link}


def test_each_page_is_within_two_links_of_the_readme() -> None:
    reached = {ROOT / "README.md"}
    for _ in range(2):
        reached |= {target for page in reached for target in links_of(page)}
    assert [page.relative_to(DOCS).as_posix() for page in PAGES if page.resolve() not in reached] == []


def test_the_tables_of_the_readme_and_the_index_lead_to_every_guide() -> None:
    guides = {path.resolve() for path in (DOCS / "guides").glob("*.md")}
    assert guides <= links_of(DOCS / "index.md")
    rows = [row for row in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if row.startswith("| ")]
    assert sum("](docs/guides/" in row for row in rows) >= 12


@pytest.mark.parametrize("page", sorted((DOCS / "guides").glob("*.md")), ids=lambda path: path.stem)
def test_a_guide_leads_on_to_related_pages(page: Path) -> None:
    last = page.read_text(encoding="utf-8").rstrip().rpartition("\n\n")[2]
    assert last.startswith("Related: ") and "](" in last


def test_the_table_of_verbs_has_each_verb_in_its_place() -> None:
    page = (REFERENCE / "verbs.md").read_text(encoding="utf-8").partition("## Questions about a program")[0]
    rows = [[cell.strip() for cell in row.split("|")] for row in page.splitlines() if row.count("|") == 6]
    for place, surfaces, column in (("%tapescope", {"magic"}, 4), ("prompt", {"prompt", "script"}, 5)):
        named = {name for row in rows for name in re.findall(r"`(\w+)[^`]*`", row[column])}
        known = {
            (each.magic if place == "%tapescope" and each.magic else each.usage).partition(" ")[0]
            for each in ROWS
            if surfaces & {*each.on}
        }
        assert named - known <= {"export"} and known - named <= {"advise", "help", "stop"}, place


def test_the_pages_on_reading_name_each_category_of_memory() -> None:
    deck = (REFERENCE / "reading_the_deck.md").read_text(encoding="utf-8").partition("## Colours of memory")[2]
    source = (ROOT / "widgets/js/src/model/document.ts").read_text(encoding="utf-8")
    shown = re.findall(r'title: "[^"]+", name: "([^"]+)"', source)
    assert len(shown) == len(Category) and [name for name in shown if name not in deck] == []
    report = (REFERENCE / "reading_a_report.md").read_text(encoding="utf-8").partition("\n## Phases")[0]
    assert [kind for kind in get_args(Kind) if kind not in report] == []


def test_the_glossary_has_25_words_in_their_order() -> None:
    words = re.findall(
        r"^\| (?!word)([A-Za-z ]+) \|", (REFERENCE / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(words) == 25 and words == sorted(words, key=str.lower)


def test_each_page_is_in_the_contents() -> None:
    listed = {
        (page.parent / f"{entry}.md").resolve()
        for page in PAGES
        for contents in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        for entry in contents.split()
    }
    assert {*PAGES} - {DOCS / "index.md"} <= listed


def test_the_page_of_formats_names_each_key_of_a_run(tmp_path: Path) -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    saved = json.loads(ts.profile(lambda: weight.exp().sum(), trace="full").save(tmp_path / "a.tape.json").read_text())
    page = (REFERENCE / "formats.md").read_text(encoding="utf-8")
    said = {}
    for path in re.findall(r"^\.\. autofunction:: tapescope\.(\S+)$", page, re.MULTILINE):
        module, _, name = path.rpartition(".")
        said[name] = inspect.getdoc(getattr(import_module(f"tapescope.{module}"), name)) or ""
    for name, part in (("save", saved), ("write_graph", saved["graph"]), ("write_timeline", saved["timeline"])):
        assert [key for key in part if f"`{key}`" not in said[name]] == []


def test_all_keys_of_the_deck_are_in_the_table_of_keys() -> None:
    source = (ROOT / "widgets" / "js" / "src" / "views" / "help.ts").read_text(encoding="utf-8")
    keys = {key for each in re.findall(r'^    "([^"]+)": "', source, re.MULTILINE) for key in each.split()}
    page = (REFERENCE / "keys.md").read_text(encoding="utf-8")
    cells = [cell for line in page.splitlines() if line.startswith("|") for cell in line.split("|")]
    assert len(keys) > 20
    assert keys <= {key for cell in cells for key in re.split(r"[ ,]+", cell)}


def test_all_pages_install_from_one_place() -> None:
    texts = [
        page.read_text(encoding="utf-8")
        for page in READ_ON_GITHUB
        if page.name not in ("CHANGELOG.md", "CONTRIBUTING.md")
    ]
    found = [
        place for text in texts for place in re.findall(r"pip install '([./\w]+)\[(?:notebook|figures|marimo)\]'", text)
    ]
    assert len(found) == 6
    assert {place.removesuffix("/tapescope") for place in found} in ({"."}, {"tapescope"})


def test_the_readme_is_read_in_a_minute() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_each_deck_of_a_tour_has_one_still_which_the_built_page_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    live = import_module("live_decks")
    for tour in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(tour.read_text(encoding="utf-8"))["cells"]:
            outputs = cell.get("outputs", [])
            decks, stills = (
                [each for each in outputs if live.shows_deck(each, kind)] for kind in (live.VIEW, live.STILL)
            )
            assert len(decks) == len(stills)
