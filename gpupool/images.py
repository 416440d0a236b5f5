"""Images in and out through Pillow, as N x H x W x C arrays of uint8 or uint16 that lose nothing.

What would lose something is refused by name: colour of 16 bits a channel (Pillow keeps eight
without a word), several frames, an alpha channel into a JPEG.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from gpupool.errors import GpupoolError, GpupoolTypeError, GpupoolValueError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Pixels = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Format:
    """One file format: its name in Pillow, the modes it keeps, and how it is saved.

    ``most`` are the pixels that it holds along a side.
    """

    name: str
    modes: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    most: int = 2**31 - 1


_PNG = Format("PNG", ("L", "LA", "RGB", "RGBA", "I;16"))
_TIFF = Format("TIFF", ("L", "LA", "RGB", "RGBA", "I;16"))
_JPEG = Format("JPEG", ("L", "RGB"), {"quality": 95}, most=65500)
_WEBP = Format("WEBP", ("L", "LA", "RGB", "RGBA"), {"lossless": True, "exact": True}, most=16383)

FORMATS = {
    ".png": _PNG,
    ".jpg": _JPEG,
    ".jpeg": _JPEG,
    ".tif": _TIFF,
    ".tiff": _TIFF,
    ".webp": _WEBP,
}
"""File name endings, lower case, and what they mean."""

_EXPANDED = {
    "1": "L",
    "P": "RGB",
    "PA": "RGBA",
    **{mode: mode for mode in ("L", "LA", "RGB", "RGBA")},
    **dict.fromkeys(("I;16", "I;16L", "I;16B", "I;16N"), "I;16"),
}
"""Pillow's modes, and the mode in which each is pooled."""

_WITH_ALPHA = {"L": "LA", "RGB": "RGBA"}
_SAID = {
    "L": "8-bit grey",
    "LA": "grey with an alpha channel",
    "RGB": "colour",
    "RGBA": "colour with an alpha channel",
    "I;16": "16-bit grey",
}


@dataclass(frozen=True)
class Picture:
    """The pixels of an image, 1 x H x W x C, and the profile that says what its colours mean."""

    pixels: Pixels
    icc_profile: bytes | None = None


def in_folder(folder: Path) -> tuple[list[Path], int]:
    """Return the images of a folder in the order of their names, and how many entries are none.

    A link that leads nowhere counts as an image, so that reading it names it. Without Pillow, which
    reading any of them needs, there is an error.
    """
    _pillow("Image")
    visible = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    named = [path for path in visible if path.suffix.lower() in FORMATS]
    found = [path for path in named if path.is_file() or not path.exists()]
    if not found:
        raise GpupoolValueError(f"{folder}: this folder holds no image ({', '.join(FORMATS)})")
    return found, len(visible) - len(found)


def read(path: Path) -> Picture:
    """Return the one picture in a file, upright, its palette expanded, alpha as a channel."""
    pillow = _pillow("Image")
    names = sorted({form.name for form in FORMATS.values()})
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata, and of sizes within Pillow's own limit
        head = file.read(32)
        file.seek(0)
        try:
            with pillow.open(file, formats=names) as image:
                return _picture(image, head, path)
        except (GpupoolError, MemoryError):
            raise
        except pillow.UnidentifiedImageError:
            raise GpupoolValueError(f"{path}: not an image ({', '.join(names)})") from None
        except Exception as error:  # Pillow's decoders let many classes through for a hostile file
            raise GpupoolValueError(f"{path}: not a readable image: {error}") from error


def _picture(image: Any, head: bytes, path: Path) -> Picture:
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # a camera's JPEG whose other pictures are previews
        raise GpupoolValueError(f"{path}: {frames} frames, and only a single one can be pooled")
    mode = _expanded(image, head, path)
    upright = _pillow("ImageOps").exif_transpose(image)
    if mode == "I;16":
        pixels = np.asarray(upright).astype(np.uint16)
        if image.format == "TIFF" and image.tag_v2.get(262) == 0:  # PhotometricInterpretation
            pixels = ~pixels  # its white is zero, which Pillow minds with 8 bits only
    else:
        pixels = np.asarray(upright.convert(mode))
    return Picture(pixels.reshape(1, *pixels.shape[:2], -1), image.info.get("icc_profile"))


def _expanded(image: Any, head: bytes, path: Path) -> str:
    """Return the mode in which the image is pooled; refuse one that cannot be without a loss."""
    mode = _EXPANDED.get(image.mode)
    if mode is None:
        raise GpupoolTypeError(
            f"{path}: an image of Pillow's mode {image.mode}; "
            f"allowed: grey, RGB and RGBA of 8 bits, palettes, grey of 16 bits"
        )
    bits = _bits(image, head)
    if mode not in ("L", "I;16"):
        if bits > 8:
            raise GpupoolTypeError(
                f"{path}: colour or alpha of 16 bits a channel, which Pillow cuts to 8; "
                f"convert it to 8 bits, or to a .npy array"
            )
    elif bits not in (1, 8) and image.has_transparency_data:
        raise GpupoolTypeError(
            f"{path}: {bits}-bit grey with a transparent value, which Pillow misreads; "
            f"convert it to 8-bit grey with an alpha channel"
        )
    return _WITH_ALPHA.get(mode, mode) if image.has_transparency_data else mode


def _bits(image: Any, head: bytes) -> int:
    """Return the bits a channel that the file declares, which Pillow's mode does not tell."""
    if image.format == "PNG":
        return head[24]  # the bit depth in IHDR, which the standard puts first
    if image.format == "TIFF":
        return int(max(image.tag_v2.get(258, (1,))))  # BitsPerSample
    return 8


def mode_of(pixels: Pixels) -> str:
    """Return Pillow's mode for an N x H x W x C array.

    >>> mode_of(np.zeros((1, 4, 6, 2), np.uint8)), mode_of(np.zeros((1, 4, 6, 1), np.uint16))
    ('LA', 'I;16')
    """
    if pixels.dtype == np.uint16:
        return "I;16"
    return ("L", "LA", "RGB", "RGBA")[pixels.shape[-1] - 1]


def format_for(path: Path, pixels: Pixels) -> Format:
    """Return the format that the name ``path`` asks for; refuse one that cannot hold the pixels."""
    form = FORMATS.get(path.suffix.lower())
    if form is None:
        raise GpupoolValueError(f"{path}: the ending must be one of {', '.join(FORMATS)}")
    if (mode := mode_of(pixels)) not in form.modes:
        raise GpupoolValueError(f"{path}: {form.name} cannot hold {_SAID[mode]}; {_able(mode)}")
    return form


def check_size(path: Path, form: Format, mode: str, height: int, width: int) -> None:
    """Refuse a picture that is larger than its format allows, which Pillow does without a name."""
    if (side := max(height, width)) > form.most:
        raise GpupoolValueError(
            f"{path}: {form.name} cannot hold {width} x {height} pixels, only up to {form.most} "
            f"along a side; {_able(mode, side)}"
        )


def _able(mode: str, side: int = 0) -> str:
    """Say which formats hold pictures of a mode and size."""
    able = dict.fromkeys(f.name for f in FORMATS.values() if mode in f.modes and side <= f.most)
    return f"these can: {', '.join(able)}" if able else "no other format can"


def quantise(y: Pixels, dtype: np.dtype[Any]) -> Pixels:
    """Return float pixels as integers: rounded half to even, saturated at the ends of ``dtype``.

    >>> quantise(np.array([0.5, 1.5, 254.5, 900.0], np.float32), np.dtype(np.uint8)).tolist()
    [0, 2, 254, 255]
    """
    if y.dtype == dtype:
        return y
    limits = np.iinfo(dtype)
    return np.clip(np.rint(y), limits.min, limits.max).astype(dtype)


def write(file: BinaryIO, picture: Picture, form: Format) -> None:
    """Write the picture, with its colour profile, in the given format."""
    pixels = picture.pixels[0]
    image = _pillow("Image").fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    profile = picture.icc_profile
    if form is _WEBP and pixels.shape[-1] < 3:
        profile = None  # WebP stores grey as RGB, which a grey profile does not describe
    image.save(file, form.name, icc_profile=profile, **form.options)


def _pillow(module: str) -> Any:
    try:
        return importlib.import_module(f"PIL.{module}")
    except ImportError:
        raise GpupoolError('images need Pillow: pip install "pillow>=11"') from None
