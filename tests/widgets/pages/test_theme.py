"""Categories of memory have the same colours and explanations wherever they are drawn."""

from __future__ import annotations

import re

from tapescope.engine.memory.categories import Category
from tapescope.widgets.deck.save_deck import CODE
from tapescope.widgets.pages.glossary import CATEGORIES
from tapescope.widgets.pages.theme import CATEGORY_COLOURS, DARK, LIGHT


def test_each_category_has_a_colour_of_its_own_in_both_themes_and_a_line_of_words() -> None:
    assert list(CATEGORY_COLOURS) == list(CATEGORIES) == list(Category)
    for theme in (LIGHT, DARK):
        assert len({theme[name] for name in CATEGORY_COLOURS.values()}) == len(Category)


def test_the_page_knows_the_categories_by_the_same_numbers_and_colours() -> None:
    code = CODE.read_text(encoding="utf-8")
    table = code[code.index('{key:"saved",title:') :].partition("]")[0]
    assert re.findall(r'key:"(\w+)",title:', table) == list(CATEGORY_COLOURS.values())
    for name in CATEGORY_COLOURS.values():
        assert f"--{name}: {LIGHT[name]}" in code or f"--{name}:{LIGHT[name]}" in code
