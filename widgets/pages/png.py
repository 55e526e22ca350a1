"""Conversion of tapescope's SVG pictures to PNG, which untrusted notebooks show and any program can paste."""

from __future__ import annotations

import re
from base64 import b64encode
from importlib.util import find_spec
from pathlib import Path

_FONTS = [str(Path(__file__).parent.parent / "static" / name) for name in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")]

# Characters outside of these fonts. A picture without them looks the same on every machine, and does not load the
# system's fonts, which can take longer than drawing.
_OTHER_SIGNS = re.compile(
    "[^\t\n\r\u0020-\u007e\u00a0-\u017f\u0370-\u03ff\u2010-\u2027\u2030-\u203a\u20ac\u2190-\u2199\u2200-\u220f"
    "\u2212\u221a\u221e\u2248\u2260\u2264\u2265\u22ef\u25b2\u25b6\u25b8\u25c0\u25c2\u25cb\u25cf\u2713\ufffd]"
)

# resvg supports neither CSS variables nor media queries. The regular expression is safe for user text in attributes,
# because quotes are written as `&quot;` there.
_STYLED = re.compile(r'<style>.*?</style>|style="[^"]*"', re.DOTALL)
_IN_THE_DARK = re.compile(r"@media \(prefers-color-scheme:dark\)\{(.*?\})\}", re.DOTALL)
_SET = re.compile(r"(--[\w-]+):([^;}]+)")
_USED = re.compile(r"var\((--[\w-]+)\)")


def can_draw_png() -> bool:
    """Return whether resvg-py, which draws PNG, is installed."""
    return find_spec("resvg_py") is not None


def png_of(svg: str, *, scale: float = 2.0) -> bytes:
    """Return a picture drawn by tapescope as PNG, in its light theme if it has two.

    Args:
        svg: a picture drawn by tapescope. Its variables are colours, set in its own style sheet.
        scale: pixels of the PNG per pixel of the SVG.

    Raises:
        ModuleNotFoundError: resvg-py is not installed.
    """
    try:
        from resvg_py import svg_to_bytes
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "PNG pictures need resvg-py: pip install 'tapescope[notebook]', or pip install resvg-py"
        ) from error
    return svg_to_bytes(
        svg_string=_in_light_colours(svg),
        zoom=scale,
        font_files=_FONTS,
        sans_serif_family="DejaVu Sans",
        skip_system_fonts=_OTHER_SIGNS.search(svg) is None,
    )


Bundle = tuple[dict[str, str], dict[str, dict[str, float]]]

_NOTEBOOKS_SCALE = 1.5  # sharp on most screens; 2 would make a notebook a third larger
_SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)" height="([\d.]+)"')


def bundle_of(svg: str, text: str, scale: float = _NOTEBOOKS_SCALE) -> Bundle:
    """Return a picture as notebook output: data and metadata by MIME type.

    An untrusted notebook does not show SVG, and some viewers never do. The output therefore also contains a PNG if
    resvg-py is installed.
    """
    data = {"image/svg+xml": svg, "text/plain": text}
    if not can_draw_png():
        return data, {}
    # The metadata give the size in CSS pixels, since the PNG itself has more pixels than that.
    size = _SIZE.search(svg)
    data["image/png"] = b64encode(png_of(svg, scale=scale)).decode("ascii")
    return data, {"image/png": {"width": float(size[1]), "height": float(size[2])}} if size else {}


def _in_light_colours(svg: str) -> str:
    """Return the picture with the light theme's colours in place of variables."""
    colours = dict(_SET.findall(_IN_THE_DARK.sub("", "".join(_STYLED.findall(svg)))))
    return _STYLED.sub(lambda styled: _USED.sub(lambda used: colours[used[1]], _IN_THE_DARK.sub("", styled[0])), svg)
