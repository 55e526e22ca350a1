"""The record of trouble that other tests find empty: that it fills."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Browser

from .chromium import trouble_of

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("script", "noticed"),
    [
        ("fetch('http://example.com/x').catch(() => {})", "request to http://example.com/x"),
        ("new WebSocket('ws://example.com/x')", "ws://example.com/x"),
        ("console.error('wrong')", "console: wrong"),
        ("setTimeout(() => { throw new Error('thrown') })", "thrown"),
        ("Promise.reject(new Error('rejected'))", "rejected"),
    ],
)
def test_what_goes_wrong_on_a_page_is_noticed(browser: Browser, script: str, noticed: str) -> None:
    page = browser.new_page()
    trouble = trouble_of(page)
    page.evaluate(f"() => {{ {script}; }}")
    until = time.monotonic() + 15
    while not any(noticed in each for each in trouble):
        assert time.monotonic() < until, f"not noticed; but {trouble}"
        page.wait_for_timeout(10)
    page.close()


def test_the_browser_reaches_no_other_machine(browser: Browser) -> None:
    page = browser.new_page()
    answers = "() => fetch('http://example.com/').then(() => true, () => false)"
    assert page.evaluate(answers) is False
    page.close()
