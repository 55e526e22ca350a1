from __future__ import annotations

import pytest

from tapescope.inspector.text.option_form import as_options, options_named


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ('give ts.fits device="cuda".', "give ts.fits --device cuda."),
        ('use ts.debug(..., engine="native") instead', "use --engine native instead"),
        ("pass queues='per device'", "pass --queues per-device"),
        ("leave it out (batch=)", "leave it out (--batch)"),
        ("run without keep_inputs=", "run without --keep-inputs"),
        ('ts.backward(loss, trace="cheap") records it', 'ts.backward(loss, trace="cheap") records it'),
        ("engine=engine and myengine='native'", "engine=engine and myengine='native'"),
    ],
)
def test_only_arguments_of_the_command_become_options(message: str, expected: str) -> None:
    with options_named({"device", "engine", "queues", "batch", "keep_inputs"}):
        assert as_options(message) == expected
    assert as_options(message) == message, "Python's form outside of a command"
