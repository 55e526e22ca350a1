"""What a page of its own is made of around what it shows: it loads nothing, and sends nothing."""

from __future__ import annotations

from html import escape

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)


def page_around(body: str, title: str, style: str) -> str:
    """The page. `body` and `style` are HTML and CSS, `title` is any text."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · tapescope</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
