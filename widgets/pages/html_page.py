"""The HTML document of every saved page, with its security policy and the reader's light or dark theme."""

from __future__ import annotations

from html import escape

from .theme import DARK, FONT, LIGHT, variables

# The policy forbids a page to load or send anything. A deck imports its code from a Blob, and saves pictures.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)

_STYLE = f"""
:root{{color-scheme:light dark;{variables(LIGHT)};background:var(--bg);color:var(--ink)}}
@media screen and (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}
body{{margin:0;padding:8px;font:400 12px/17px {FONT};-webkit-font-smoothing:antialiased}}
"""


def html_page(title: str, body: str, style: str = "", meta: str = "") -> str:
    """Return the page.

    Args:
        title: plain text; it is escaped here.
        body: HTML.
        style: CSS.
        meta: HTML of additional `<meta>` elements.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="tapescope">
{meta}<title>{escape(title)} · tapescope</title>
<style>{_STYLE}{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
