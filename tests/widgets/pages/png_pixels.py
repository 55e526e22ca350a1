"""A PNG, read: its pixels, and no package needed."""

from __future__ import annotations

import zlib
from struct import unpack

import numpy as np

Pixels = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]


def pixels_of(png: bytes) -> Pixels:
    """Height × width × (red, green, blue, opacity) of a PNG that has all four in a byte each."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, data, size = 8, b"", (0, 0)
    while at < len(png):
        (length,), kind = unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        chunk = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            *size, depth, colour = unpack(">IIBB", chunk[:10])
            assert (depth, colour, chunk[12]) == (8, 6, 0)
        data += chunk if kind == b"IDAT" else b""
        at += length + 12
    width, height = size
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + 4 * width)
    pixels = np.zeros((height + 1, 4 * width + 4), np.int64)  # a row above, and a pixel at the left, that are 0
    for row, (kind, *line) in enumerate(rows.tolist(), 1):
        _unfiltered(kind, line, pixels[row - 1], pixels[row])
    return pixels[1:, 4:].astype(np.uint8).reshape(height, width, 4)


def _unfiltered(kind: int, line: list[int], above: np.ndarray, out: np.ndarray) -> None:
    """The five filters of PNG, section 9 of its specification."""
    if kind in (0, 2):
        out[4:] = (np.array(line) + (above[4:] if kind else 0)) % 256
        return
    for at, value in enumerate(line, 4):
        left, up, corner = int(out[at - 4]), int(above[at]), int(above[at - 4])
        if kind == 4:
            guess = left + up - corner
            predicted = min((left, up, corner), key=lambda each: abs(guess - each))
        else:
            predicted = left if kind == 1 else (left + up) // 2
        out[at] = (value + predicted) % 256
