"""No module of the pages' TypeScript imports itself through others; imports of types count as well."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from .structure.imports import cycles

SOURCES = Path(__file__).parents[1] / "widgets" / "js" / "src"
IMPORT = re.compile(r"""^(?:import|export)\b[^;'"]*["'](\.[^"']+\.ts)["']""", re.MULTILINE)


def imports_of(texts: Mapping[Path, str]) -> dict[str, frozenset[str]]:
    """Return the modules that each module imports, by path."""
    return {
        str(path): frozenset(str((path.parent / name).resolve()) for name in IMPORT.findall(text))
        for path, text in texts.items()
    }


def test_no_imports_form_a_circle() -> None:
    imports = imports_of({path: path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.ts")})
    assert len(imports) > 100
    assert all(frozenset(imports) >= names for names in imports.values()), "an import names a file that is not there"
    assert cycles(imports) == []


@pytest.mark.parametrize(
    "line",
    [
        'import { first } from "./first.ts";',
        'import type { First } from "./first.ts";',
        'import {\n  type First,\n  first,\n} from "../page/first.ts";',
        'import "./first.ts";',
        'export { first } from "./first.ts";',
        'export * from "./first.ts";',
    ],
)
def test_each_form_of_import_can_close_a_circle(line: str) -> None:
    first, second = Path("/page/first.ts"), Path("/page/second.ts")
    imports = imports_of({first: 'import { second } from "./second.ts";\n', second: f"/** Text. */\n\n{line}\n"})
    assert [set(circle) for circle in cycles(imports)] == [{str(first), str(second)}]
