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
:root[data-theme=light]{{color-scheme:light}}
@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{variables(DARK)}}}}}
@media screen{{:root[data-theme=dark]{{color-scheme:dark;{variables(DARK)}}}}}
body{{margin:0;padding:8px;font:400 12px/17px {FONT};-webkit-font-smoothing:antialiased}}
"""

MARK = (
    '<svg width="20" height="20" viewBox="0 0 20 20" fill="none" stroke="currentColor" stroke-width="1.6" '
    'aria-hidden="true"><circle cx="5.5" cy="8" r="3.2"/><circle cx="14.5" cy="8" r="3.2"/>'
    '<path d="M2.6 13.5h4.6l1.2-1.6h3.2l1.2 1.6h4.6" stroke-linejoin="round"/>'
    '<path d="M8.6 15.5h2.8v2H8.6z" fill="currentColor" stroke="none"/></svg>'
)
"""The logo, the same as the deck's."""

HEADER_STYLE = """
header{display:flex;flex-wrap:wrap;gap:4px 12px;align-items:center;padding:12px}
header svg{flex:none}
header>svg{color:var(--accent)}
h1{font-size:14px;line-height:20px;font-weight:600;margin:0;overflow-wrap:anywhere}
.theme{display:grid;place-items:center;width:28px;height:28px;margin:-4px 0 -4px auto;padding:0;border:0;
  border-radius:6px;background:none;color:var(--ink2);cursor:pointer}
.theme:hover{background:var(--sunk);color:var(--ink)}
@media print{.theme{display:none}}
"""
"""Style of a header with the logo, a title, and the button that changes the theme, which a script adds."""


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
