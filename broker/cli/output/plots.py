"""Pictures of numbers over time: text for a terminal, and a PNG file.

Owns: how a column is drawn.
May not touch: where the numbers come from.
Spec: PNG (ISO/IEC 15948), 8-bit grayscale."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

ROWS = 10
COLUMN_PIXELS, PLOT_PIXELS, MARGIN_PIXELS = 8, 200, 10
WHITE, GRID, INK = 255, 225, 60


def columns_plot(values: Sequence[float], *, width: int | None = None) -> list[str]:
    """Lines of text, the highest first. The newest values, as many as fit."""
    room = (width or shutil.get_terminal_size().columns) - 12
    shown = list(values)[-max(room, 10) :]
    most = max(shown) or 1.0
    lines = []
    for row in range(ROWS, 0, -1):
        label = f"{most * row / ROWS:>9,.1f}" if row in (ROWS, ROWS // 2) else " " * 9
        bars = "".join("#" if value / most * ROWS > row - 0.5 else " " for value in shown)
        lines.append(f"{label} |{bars}".rstrip())
    return [*lines, " " * 10 + "+" + "-" * len(shown)]


def write_png(path: Path, values: Sequence[float]) -> None:
    """A column for every value, lines at every quarter of the largest one."""
    most = max(values) or 1.0
    width = MARGIN_PIXELS * 2 + COLUMN_PIXELS * len(values)
    height = MARGIN_PIXELS * 2 + PLOT_PIXELS
    pixels = [bytearray([WHITE]) * width for _ in range(height)]
    for quarter in range(5):
        pixels[MARGIN_PIXELS + PLOT_PIXELS * quarter // 4] = bytearray([GRID]) * width
    for number, value in enumerate(values):
        left = MARGIN_PIXELS + number * COLUMN_PIXELS
        top = PLOT_PIXELS - round(value / most * PLOT_PIXELS)
        for y in range(max(top, 0), PLOT_PIXELS + 1):
            span = slice(left, left + COLUMN_PIXELS - 2)
            pixels[MARGIN_PIXELS + y][span] = bytes([INK]) * (COLUMN_PIXELS - 2)
    raw = b"".join(b"\0" + bytes(row) for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", head)
        + _chunk(b"IDAT", zlib.compress(raw))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
