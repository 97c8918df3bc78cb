"""Made-up pictures of books: a hundred covers, small and large, the same each time."""

import colorsys
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

COUNT = 100
SMALL, LARGE = (90, 135), (240, 360)
"""Width and height in pixels; about 6 and 45 kB as files, in the range that TPC-W gives."""
_GRAIN = 3
"""How far a pixel is from its picture's smooth colour: this is what makes the files as large as photographs."""


def draw(folder: Path) -> None:
    """Writes books/N.png and covers/N.png under `folder`."""
    for name, size in (("books", SMALL), ("covers", LARGE)):
        (folder / name).mkdir()
        for number in range(COUNT):
            (folder / name / f"{number}.png").write_bytes(_png(_picture(number, *size)))


def _picture(number: int, width: int, height: int) -> NDArray[np.uint8]:
    chance = np.random.default_rng(number)
    hue = chance.random()
    ground, light = _colour(hue, 0.55, 0.42), _colour(hue + 0.08, 0.45, 0.75)
    across, down = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1.5, height))
    canvas = ground + (light - ground) * (down / 1.5)[..., None]
    for _ in range(4):
        _disc(canvas, across, down, chance, hue)
    canvas[(down > 0.16) & (down < 0.42) & (across > 0.12) & (across < 0.88)] = (246, 240, 224)  # the title's label
    canvas[(abs(down - 0.25) < 0.018) & (abs(across - 0.5) < 0.28)] = ground
    canvas[(abs(down - 0.33) < 0.012) & (abs(across - 0.5) < 0.16)] = ground
    canvas[across < 0.04] *= 0.7  # the spine's shadow
    grain = chance.integers(-_GRAIN, _GRAIN, canvas.shape[:2], endpoint=True)
    return np.clip(canvas + grain[..., None], 0, 255).astype(np.uint8)


def _disc(
    canvas: NDArray[np.float64],
    across: NDArray[np.float64],
    down: NDArray[np.float64],
    chance: np.random.Generator,
    hue: float,
) -> None:
    """Paints a disc somewhere below the label, so that what is under it shines through."""
    centre, radius = (chance.random(), 0.55 + 0.9 * chance.random()), 0.1 + 0.25 * chance.random()
    inside = (across - centre[0]) ** 2 + (down - centre[1]) ** 2 < radius**2
    colour = _colour(hue + 0.5 * chance.random(), 0.6, 0.8)
    canvas[inside] = canvas[inside] * 0.45 + colour * 0.55


def _colour(hue: float, saturation: float, value: float) -> NDArray[np.float64]:
    return np.array(colorsys.hsv_to_rgb(hue % 1, saturation, value)) * 255


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """The picture as a PNG of true colour (the format: www.w3.org/TR/png)."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + width * 3), dtype=np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
