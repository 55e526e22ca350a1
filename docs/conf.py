"""How Sphinx builds these pages: `make docs`. Nothing is fetched while they are built or read."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent, indent

from sphinx.application import Sphinx

import tapescope as ts
from tapescope.__main__ import command_line

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # Sphinx does not

from live_decks import STILL, shows_deck  # noqa: E402

NOTEBOOKS = HERE.parent / "notebooks"
DECKS = HERE / "_pages" / "decks"
LIVE = {"application/vnd.jupyter.widget-view+json", "application/vnd.plotly.v1+json"}

project = "tapescope"
author = "tapescope contributors"
copyright = "tapescope contributors, MIT licence"
version = release = version_of("tapescope")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "README.md"]
default_role = "code"
nitpicky = False
highlight_language = "text"  # of a fence without a language: what a program printed, which is not Python
smartquotes = False  # quotes in messages and expressions can be copied

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
suppress_warnings = ["myst.header", "ref.python"]  # what commands say begins with its second level
myst_heading_anchors = 3
# As they are stored: running them is the tours' own check.
nb_execution_mode = "off"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
maximum_signature_line_length = 90
add_module_names = False
python_use_unqualified_type_names = True
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"tapescope {version}"
html_static_path = ["_static"]
html_css_files = ["tapescope.css"]
html_extra_path = ["_pages"]  # saved decks, as they are
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}


_COLON = "\ue000"


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _hide_colons, priority=400)
    app.connect("autodoc-process-docstring", _mark_code)
    app.connect("autodoc-process-signature", _leave_out_signature)
    app.connect("source-read", _unlike_github)


_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(.*?)">\s*'
    r'<img src="(.*?)" alt="(.*?)">\s*</picture>'
)
_BY_THEME = """```{image} \\2
:alt: \\3
:class: only-light
```
```{image} \\1
:alt: \\3
:class: only-dark
```"""
_FRAME = """<iframe src="{page}" title="{title}" class="deck" loading="lazy"></iframe>
<p><a href="{page}">in a tab of its own</a></p>"""
_DECK = _FRAME.format(page="decks/linear50.html", title="A deck: the backward of one Linear used fifty times")
_DECK = f"```{{raw}} html\n{_DECK}\n```"


def _unlike_github(app: Sphinx, page: str, source: list[str]) -> None:
    """Pages are written so that GitHub shows them well. Here a picture goes by the theme that is chosen, a tour lies
    among the pages, a deck plays, and in narrow columns a number keeps its unit."""
    if app.env.doc2path(page).suffix != ".md":
        return
    text = re.sub(r"<!-- begin: .*? -->.*<!-- end -->", lambda found: _DECK, source[0], flags=re.DOTALL)
    text = re.sub(
        r"^\|.*", lambda row: re.sub(r"(?<=\d) (?=[×%]|[KMG]iB|ms\b)", "\u00a0", row[0]), text, flags=re.MULTILINE
    )
    text = text.replace("(../../notebooks/", "(../tutorials/").replace("(../notebooks/", "(tutorials/")
    source[0] = _PICTURE.sub(_BY_THEME, text)


def _leave_out_signature(
    app: Sphinx, what: str, name: str, owner: object, options: object, signature: str, gives: str
) -> tuple[str, str] | None:
    """Of what users are given and never make: its docstring has attributes, and no arguments."""
    made_by_users = what != "class" or "Args:" in (owner.__doc__ or "")
    return None if made_by_users else ("", "")


def _hide_colons(app: Sphinx, what: str, name: str, owner: object, options: object, lines: list[str]) -> None:
    """What stands before a colon in the first line of a property's docstring, napoleon would take for its type."""
    if what in ("attribute", "property") and lines:
        lines[0] = lines[0].replace(":", _COLON)


def _mark_code(app: Sphinx, what: str, name: str, owner: object, options: object, lines: list[str]) -> None:
    """In docstrings examples stand as paragraphs of code: these become blocks of it."""
    blocks = "\n".join(lines).replace(_COLON, ":").split("\n\n")
    lines[:] = "\n\n".join(_as_code(block) if _is_code(block) else block for block in blocks).split("\n")


def _is_code(block: str) -> bool:
    try:
        tree = ast.parse(dedent(block))
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Call | ast.Assign | ast.Attribute) for node in ast.walk(tree))


def _as_code(block: str) -> str:
    before = block[: len(block) - len(block.lstrip())].strip("\n")
    return f"{before}.. code-block:: python\n\n{indent(block, '    ')}"


def _copy_tours() -> None:
    """Sphinx reads pages below its own folder. A deck plays as a saved page; a figure shows its still picture."""
    for path in sorted(NOTEBOOKS.glob("[01]*.ipynb")):
        tour = json.loads(path.read_text(encoding="utf-8"))
        if any(shows_deck(output) for cell in tour["cells"] for output in cell.get("outputs", ())):
            _save_decks(path, tour["metadata"]["tapescope"]["code"])
        for number, cell in enumerate(tour["cells"]):
            decks = [output for output in cell.get("outputs", ()) if shows_deck(output)]
            pages = [f"decks/{path.stem}_{number}_{place}.html" for place in range(len(decks))]
            if decks and all((DECKS.parent / page).exists() for page in pages):
                for page, output in zip(pages, decks, strict=True):
                    output["data"] = {"text/html": _FRAME.format(page=f"../{page}", title=f"A deck of {path.stem}")}
                # A deck's still, for viewers that run no scripts, is an output of its own.
                cell["outputs"] = [each for each in cell["outputs"] if not shows_deck(each, STILL)]
            for output in cell.get("outputs", ()):
                for live in LIVE & output.get("data", {}).keys():
                    del output["data"][live]
        (HERE / "tutorials" / path.name).write_text(json.dumps(tour), encoding="utf-8")


def _save_decks(tour: Path, code: str) -> None:
    """Save a tour's decks in a process of its own, unless they are those of its code already."""
    DECKS.mkdir(parents=True, exist_ok=True)
    stamp = HERE / "_generated" / f"{tour.stem}.{code}"
    stamp.parent.mkdir(exist_ok=True)
    if not stamp.exists():
        command = [sys.executable, str(HERE / "live_decks.py"), str(tour), str(DECKS)]
        with TemporaryDirectory() as elsewhere:  # tours write files
            subprocess.run(command, cwd=elsewhere, check=True, stdout=subprocess.DEVNULL)
        stamp.touch()


def _write_deck() -> None:
    """The deck on the first page: a saved page of a measured run, as in README's picture."""
    _, make_loss = ts.workload("linear50").build()
    run = ts.profile(make_loss, policy="bfs", trace="full")
    DECKS.mkdir(parents=True, exist_ok=True)
    run.save_html(DECKS / "linear50.html")


def _write_commands() -> None:
    """What each command says of itself."""
    os.environ["COLUMNS"] = "100"
    sections = [f"## {each.prog}\n\n```text\n{each.format_help()}```\n" for each in _parsers(command_line())]
    folder = HERE / "_generated"
    folder.mkdir(exist_ok=True)
    (folder / "commands.md").write_text("\n".join(sections), encoding="utf-8")


def _import_what_only_types_need() -> None:
    """A signature of which one name is not there shows all of its names as they are written: `AnyPolicy`, `Level`."""
    spaces = (ts, ts.types, ts.orders, ts.hips, ts.studies)
    public = [inspect.unwrap(getattr(space, name)) for space in spaces for name in space.__all__]
    for module in {
        sys.modules[each.__module__] for each in public if inspect.isfunction(each) or inspect.isclass(each)
    }:
        blocks = (node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.If))
        for node in (each for block in blocks for each in block.body if isinstance(each, ast.ImportFrom)):
            for name in node.names:
                found = import_module("." * node.level + (node.module or ""), module.__package__)
                vars(module).setdefault(name.asname or name.name, getattr(found, name.name))


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _parsers(each)


_import_what_only_types_need()
_copy_tours()
_write_deck()
_write_commands()
