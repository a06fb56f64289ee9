"""Pictures of the report: new tokens that are gray levels, as PNG images. Imports no torch."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_core.study.config.schema import ImagesConfig

MAX_PICTURES = 4
"""Pictures of one output that are shown."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GRAY_WITH_ALPHA = 4
_SHOWN_WIDTH = 72
"""Pixels of the screen that a small picture gets; it is enlarged by a whole factor."""


@dataclass(frozen=True)
class Picture:
    """A picture as the report shows it.

    Attributes:
        source: A `data:` URI of a PNG image.
        width: Its width on the screen, in CSS pixels.
        height: Its height.
        words: What it shows, for those who do not see it.
    """

    source: str
    width: int
    height: int
    words: str


def pictures(tokens: Sequence[int], images: ImagesConfig) -> Iterator[Picture]:
    """Yield the pictures that some tokens draw, at most `MAX_PICTURES`; the last may be unfinished.

    Args:
        tokens: The new tokens, pixel after pixel.
        images: Size of a picture, and the tokens of its levels.
    """
    size = images.width * images.height
    factor = max(1, _SHOWN_WIDTH // images.width)
    for start in range(0, min(len(tokens), size * MAX_PICTURES), size):
        pixels = [token - images.first for token in tokens[start : start + size]]
        drawn = sum(0 <= level < images.levels for level in pixels)
        words = f"{drawn} of {size} pixels drawn"
        if drawn < len(pixels):
            words += f"; {len(pixels) - drawn} token(s) are not gray levels"
        source = "data:image/png;base64," + base64.b64encode(_png(pixels, images)).decode()
        yield Picture(source, images.width * factor, images.height * factor, words)


def _png(pixels: Sequence[int], images: ImagesConfig) -> bytes:
    """Return a PNG image of gray levels with transparency, 8 bits each; what is not a level is transparent.

    References:
        W3C, Portable Network Graphics, third edition: 5.2 to 5.5, 11.2.
    """
    top = images.levels - 1
    gray = [(round(255 * level / top), 255) if 0 <= level <= top else (0, 0) for level in pixels]
    gray += [(0, 0)] * (images.width * images.height - len(gray))
    rows = (gray[start : start + images.width] for start in range(0, len(gray), images.width))
    # A row begins with its filter: 0 is none.
    lines = b"".join(b"\0" + bytes(part for pixel in row for part in pixel) for row in rows)
    head = struct.pack(">IIBBBBB", images.width, images.height, 8, _GRAY_WITH_ALPHA, 0, 0, 0)
    return _SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(lines, 9)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
