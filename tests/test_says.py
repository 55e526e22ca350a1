"""Facts and snapshots: what tests assert of texts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tapescope.tests import says as saying
from tapescope.tests.says import SNAPSHOTS, Snapshots, entries, raises, says, says_none_of

TESTS = Path(__file__).parent


def test_a_fact_stands_as_a_whole() -> None:
    says("12 tasks at model.py:51 hold 2.5 MiB", 12, "model.py:51", "2.5 MiB")
    for fact in (2, 5, "task", "model.py:5", "MiB at"):
        with pytest.raises(AssertionError, match="not said"):
            says("12 tasks at model.py:51 hold 2.5 MiB", fact)


def test_of_several_facts_the_missing_ones_are_named() -> None:
    with pytest.raises(AssertionError, match="not said: 'dfs', '4'; the text is:\\s+heap, 3"):
        says("heap, 3", "heap", "dfs", 3, 4)


def test_what_must_not_be_said_is_named() -> None:
    says_none_of("heap, 3", "dfs", 33)
    with pytest.raises(AssertionError, match="said: 'heap'"):
        says_none_of("heap, 3", "heap")


def test_an_error_says_facts() -> None:
    with raises(ValueError, "policy", "'x'") as raised:
        raise ValueError("unknown policy 'x'")
    assert raised.type is ValueError
    with pytest.raises(AssertionError, match="not said: 'dfs'"), raises(ValueError, "dfs"):
        raise ValueError("unknown policy 'x'")


def test_a_text_is_stored_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saying, "SNAPSHOTS", tmp_path)
    with pytest.raises(AssertionError, match="no entry 'b.py::test_b'"):
        Snapshots("b.py::test_b", update=False)("verb", "one")
    for test in ("b.py::test_b", "a.py::test_a"):
        stored = Snapshots(test, update=True)
        stored("verb", f"of {test} in {tmp_path}/model.py:3\n\nnext to test_x.py:12, 0xff, in 3.2 ms\n")
        stored("verb", "another")
    text = "model.py:3\n\nnext to test_x.py:LINE, 0xADDRESS, in TIME"
    assert list(entries(tmp_path / "verb.txt").items()) == [
        ("a.py::test_a", f"of a.py::test_a in {text}"),
        ("a.py::test_a #2", "another"),
        ("b.py::test_b", f"of b.py::test_b in {text}"),
        ("b.py::test_b #2", "another"),
    ]
    compared = Snapshots("b.py::test_b", update=False)
    compared("verb", "of b.py::test_b in /elsewhere/model.py:3\n\nnext to test_x.py:77, 0xfe, in 4 s")
    with pytest.raises(AssertionError, match="differs"):
        compared("verb", "something else")


def test_each_stored_text_is_one_of_a_test() -> None:
    names: dict[str, set[str]] = {}
    for path in sorted(SNAPSHOTS.glob("*.txt")):
        for title in entries(path):
            where, _, test = title.partition("::")
            assert (TESTS / where).exists(), f"tests/snapshots/{path.name} has {title!r}, whose file is gone"
            if where not in names:
                tree = ast.parse((TESTS / where).read_text(encoding="utf-8"))
                defined = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef))
                names[where] = {node.name for node in defined}
            asked = test.partition("[")[0].partition(" #")[0].split("::")
            assert names[where].issuperset(asked), f"tests/snapshots/{path.name} has {title!r}, a test that is gone"
