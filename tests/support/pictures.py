"""Small image files, made with Pillow."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

from PIL import Image


def picture(
    kind: str = "PNG", size: tuple[int, int] = (3, 2), mode: str = "RGB", color: Any = (9, 8, 7)
) -> bytes:
    """A file of `kind` (Pillow's name) in one color."""
    file = io.BytesIO()
    Image.new(mode, size, color).save(file, kind, lossless=True)
    return file.getvalue()


def declared_png(width: int, height: int) -> bytes:
    """A PNG of a few bytes that declares this size, and has next to no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 16)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
