"""Images through Pillow: nothing lost on the way in or out, and what would be is refused."""

import importlib
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from gpupool import images
from gpupool.errors import GpupoolError, GpupoolTypeError, GpupoolValueError

PIL = pytest.importorskip("PIL.Image")
PHOTO = Path(__file__).parent / "data" / "astronaut.png"


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(path, samples, bits, colour, extra=b"", size=None):
    """Write a PNG by hand: what Pillow itself cannot write."""
    height, width = size or samples.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in samples)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
        + extra
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    return path


def tiff16(path, samples, photometric=2):
    """Write an uncompressed little-endian TIFF of 16 bits a channel."""
    height, width, channels = samples.shape
    data = samples.astype("<u2").tobytes()
    bits_at = 8 + len(data)
    directory_at = bits_at + 2 * channels
    bits = 16 if channels == 1 else bits_at
    tags = [
        (256, 3, 1, width), (257, 3, 1, height), (258, 3, channels, bits), (259, 3, 1, 1),
        (262, 3, 1, photometric), (273, 4, 1, 8), (277, 3, 1, channels), (278, 3, 1, height),
        (279, 4, 1, len(data)),
    ]  # fmt: skip
    path.write_bytes(
        struct.pack("<2sHI", b"II", 42, directory_at)
        + data
        + struct.pack(f"<{channels}H", *[16] * channels)
        + struct.pack("<H", len(tags))
        + b"".join(struct.pack("<HHII", *tag) for tag in tags)
        + struct.pack("<I", 0)
    )
    return path


def said(path):
    """Open and close: what Pillow says of the file."""
    with PIL.open(path) as image:
        return image


def noise(*shape, dtype=np.uint8):
    limits = np.iinfo(dtype)
    return np.random.default_rng(7).integers(limits.min, limits.max, shape, dtype, endpoint=True)


KEPT = [
    (ending, channels, dtype)
    for ending, form in images.FORMATS.items()
    for channels, dtype in ((1, "u1"), (2, "u1"), (3, "u1"), (4, "u1"), (1, "u2"))
    if images.mode_of(np.zeros((1, 1, 1, channels), dtype)) in form.modes
]


@pytest.mark.parametrize(("ending", "channels", "dtype"), KEPT)
def test_pixels_come_back_as_they_were_written(tmp_path, ending, channels, dtype):
    pixels = noise(1, 9, 13, channels, dtype=np.dtype(dtype))
    path = tmp_path / f"y{ending}"
    with path.open("wb") as file:
        images.write(file, images.Picture(pixels), images.format_for(path, pixels))
    again = images.read(path).pixels
    if ending == ".webp" and channels < 3:  # WebP has no grey: it comes back as equal RGB
        again = again[..., [0, -1]] if channels == 2 else again[..., :1]
    assert again.dtype == pixels.dtype
    assert again.shape == pixels.shape
    if ending in (".jpg", ".jpeg"):
        assert said(path).format == "JPEG"  # a lossy format: only shape and dtype are kept
    else:
        np.testing.assert_array_equal(again, pixels)


def test_the_photograph_is_colour():
    photo = images.read(PHOTO)
    assert photo.pixels.shape == (1, 512, 512, 3)
    assert photo.pixels.dtype == np.uint8


def test_the_colour_profile_is_kept(tmp_path):
    photo = images.read(PHOTO)
    assert photo.icc_profile
    for ending, form in images.FORMATS.items():
        with (tmp_path / f"y{ending}").open("wb") as file:
            images.write(file, photo, form)
        assert images.read(tmp_path / f"y{ending}").icc_profile == photo.icc_profile


@pytest.mark.parametrize("ending", [".png", ".jpg", ".tif", ".webp"])
def test_exif_orientation_is_applied_once(tmp_path, ending):
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :8] = 255  # a white corner, top left when the picture is upright
    image = PIL.fromarray(np.rot90(upright))  # as a camera held on its side stores it
    exif = PIL.Exif()
    exif[274] = 6  # Orientation: turn by 90 degrees clockwise to see it upright
    image.save(tmp_path / f"x{ending}", exif=exif)
    pixels = images.read(tmp_path / f"x{ending}").pixels[0].astype(int)
    assert pixels.shape == (16, 32, 3)
    assert pixels[:7, :7].min() > 200
    assert pixels[10:, 10:].max() < 50


def test_a_palette_is_expanded(tmp_path):
    image = PIL.fromarray(noise(6, 8) % 3).convert("P")
    image.putpalette([10, 20, 30, 200, 100, 50, 0, 255, 0])
    image.save(tmp_path / "x.png")
    assert said(tmp_path / "x.png").mode == "P"
    pixels = images.read(tmp_path / "x.png").pixels
    np.testing.assert_array_equal(pixels[0], np.asarray(image.convert("RGB")))
    image.save(tmp_path / "y.png", transparency=1)
    with_alpha = images.read(tmp_path / "y.png").pixels
    np.testing.assert_array_equal(with_alpha[0, ..., 3] == 0, np.asarray(image) == 1)


def test_one_bit_becomes_black_and_white(tmp_path):
    bits = noise(6, 8) > 127
    PIL.fromarray(bits).save(tmp_path / "x.png")
    assert said(tmp_path / "x.png").mode == "1"
    np.testing.assert_array_equal(images.read(tmp_path / "x.png").pixels[0, ..., 0], bits * 255)


def test_a_transparent_value_becomes_an_alpha_channel(tmp_path):
    grey = noise(6, 8)
    path = png(tmp_path / "x.png", grey, 8, 0, chunk(b"tRNS", struct.pack(">H", grey[2, 3])))
    pixels = images.read(path).pixels[0]
    np.testing.assert_array_equal(pixels[..., 0], grey)
    np.testing.assert_array_equal(pixels[..., 1], np.where(grey == grey[2, 3], 0, 255))


@pytest.mark.parametrize(
    ("colour", "channels"), [(2, 3), (4, 2), (6, 4)], ids=["RGB", "LA", "RGBA"]
)
def test_png_of_16_bit_colour_is_refused_by_name(tmp_path, colour, channels):
    path = png(tmp_path / "x.png", noise(3, 4, channels, dtype=np.uint16), 16, colour)
    with pytest.raises(GpupoolTypeError, match=r"x\.png: colour or alpha of 16 bits"):
        images.read(path)


def test_tiff_of_16_bit_colour_is_refused_by_name(tmp_path):
    path = tiff16(tmp_path / "x.tif", noise(3, 4, 3, dtype=np.uint16))
    assert said(path).mode == "RGB"  # Pillow would give 8 bits without a word
    with pytest.raises(GpupoolTypeError, match=r"x\.tif: colour or alpha of 16 bits"):
        images.read(path)


def test_16_bit_grey_keeps_its_bits_in_either_byte_order(tmp_path):
    grey = noise(3, 4, dtype=np.uint16)
    for name, mode in (("big.tif", "I;16B"), ("little.tif", "I;16")):
        raw = grey.astype(">u2" if mode == "I;16B" else "<u2").tobytes()
        PIL.frombytes(mode, (4, 3), raw).save(tmp_path / name)
        np.testing.assert_array_equal(images.read(tmp_path / name).pixels[0, ..., 0], grey)
    path = png(tmp_path / "x.png", grey.astype(">u2"), 16, 0)
    np.testing.assert_array_equal(images.read(path).pixels[0, ..., 0], grey)


@pytest.mark.parametrize("turned", [False, True], ids=["upright", "turned"])
def test_16_bit_grey_whose_white_is_zero_is_inverted_as_that_of_8_bits_is(tmp_path, turned):
    grey = noise(3, 4, 1, dtype=np.uint16)
    path = tiff16(tmp_path / "x.tif", grey, photometric=0)
    if turned:
        data = bytearray(path.read_bytes())
        at = data.index(struct.pack("<HHI", 277, 3, 1))  # in the place of SamplesPerPixel, 1
        data[at : at + 12] = struct.pack("<HHII", 274, 3, 1, 3)  # Orientation: upside down
        path.write_bytes(data)
    upright = grey[::-1, ::-1] if turned else grey
    np.testing.assert_array_equal(images.read(path).pixels[0], 65535 - upright)


@pytest.mark.parametrize("bits", [2, 4, 16])
def test_grey_with_a_transparent_value_that_pillow_misreads_is_refused(tmp_path, bits):
    rows = noise(2, bits * 4 // 8)
    transparent = chunk(b"tRNS", b"\0\1")
    path = png(tmp_path / "x.png", rows, bits, 0, transparent, size=(2, 4))
    with pytest.raises(GpupoolTypeError, match=f"{bits}-bit grey with a transparent value"):
        images.read(path)
    opaque = images.read(png(path, rows, bits, 0, size=(2, 4))).pixels
    assert opaque.shape == (1, 2, 4, 1)


@pytest.mark.parametrize(("mode", "ending"), [("CMYK", ".jpg"), ("I", ".tif"), ("F", ".tif")])
def test_other_modes_are_refused_by_name(tmp_path, mode, ending):
    PIL.new(mode, (4, 3)).save(tmp_path / f"x{ending}")
    with pytest.raises(GpupoolTypeError, match=f"mode {mode}; allowed: grey, RGB"):
        images.read(tmp_path / f"x{ending}")


def test_several_frames_are_refused(tmp_path):
    frames = [PIL.fromarray(noise(4, 4) + i) for i in range(3)]
    frames[0].save(tmp_path / "x.tif", save_all=True, append_images=frames[1:])
    with pytest.raises(GpupoolValueError, match=r"x\.tif: 3 frames"):
        images.read(tmp_path / "x.tif")


def test_the_first_picture_of_a_camera_jpeg_is_the_picture(tmp_path):
    first, preview = PIL.new("RGB", (8, 8), "white"), PIL.new("RGB", (4, 4))
    first.save(tmp_path / "x.jpg", "MPO", save_all=True, append_images=[preview])
    assert images.read(tmp_path / "x.jpg").pixels.shape == (1, 8, 8, 3)


def test_not_an_image_is_a_value_error_that_names_the_file(tmp_path):
    """bad-inputs.md: not an image."""
    for name, content in (("a.png", b""), ("b.jpg", b"hello"), ("c.gif", b"GIF89a" + bytes(20))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(GpupoolValueError, match=f"{name}: not an image"):
            images.read(tmp_path / name)


def test_image_bomb_is_a_value_error_that_names_the_file(tmp_path):
    """bad-inputs.md: image bomb."""
    path = png(tmp_path / "bomb.png", np.zeros((0, 0), np.uint8), 8, 2, size=(50000, 50000))
    with pytest.raises(GpupoolValueError, match=r"bomb\.png: .*2500000000 pixels"):
        images.read(path)


def test_a_truncated_image_is_a_value_error_that_names_the_file(tmp_path):
    for ending in images.FORMATS:
        path = tmp_path / f"x{ending}"
        with path.open("wb") as file:
            images.write(file, images.Picture(noise(1, 64, 64, 3)), images.FORMATS[ending])
        path.write_bytes(path.read_bytes()[:-2000])
        with pytest.raises(GpupoolValueError, match=f"x{ending}: not "):
            images.read(path)


def test_damaged_images_raise_nothing_else(tmp_path):
    draw = np.random.default_rng(11)
    refused = 0
    for ending, form in images.FORMATS.items():
        buffer = io.BytesIO()
        images.write(buffer, images.Picture(noise(1, 12, 12, 3)), form)
        good = np.frombuffer(buffer.getvalue(), np.uint8)
        for _ in range(60):
            bad = good.copy()
            bad[draw.integers(0, len(bad), 6)] = draw.integers(0, 256, 6)
            (tmp_path / f"x{ending}").write_bytes(bad.tobytes())
            try:
                images.read(tmp_path / f"x{ending}")
            except GpupoolError:
                refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("name", "channels", "dtype", "message"),
    [
        ("y.jpg", 4, np.uint8, "JPEG cannot hold colour with an alpha channel; these can: PNG"),
        ("y.jpeg", 2, np.uint8, "JPEG cannot hold grey with an alpha channel"),
        ("y.jpg", 1, np.uint16, "JPEG cannot hold 16-bit grey; these can: PNG, TIFF"),
        ("y.webp", 1, np.uint16, "WEBP cannot hold 16-bit grey"),
        ("y.bmp", 3, np.uint8, r"ending must be one of \.png"),
    ],
)
def test_a_format_that_would_lose_something_is_refused(tmp_path, name, channels, dtype, message):
    with pytest.raises(GpupoolValueError, match=message):
        images.format_for(tmp_path / name, np.zeros((1, 2, 2, channels), dtype))


def test_a_side_that_no_format_holds_names_none():
    with pytest.raises(GpupoolValueError, match=r"2147483647 along a side; no other format can$"):
        images.check_size(Path("y.png"), images.FORMATS[".png"], "L", 1, 2**31)


def test_quantise_rounds_half_to_even_and_saturates():
    y = np.array([-np.inf, -0.5, 0.5, 1.5, 2.5, 254.5, 255.5, 1e9, np.inf], np.float32)
    assert images.quantise(y, np.dtype(np.uint8)).tolist() == [0, 0, 0, 2, 2, 254, 255, 255, 255]
    assert images.quantise(y, np.dtype(np.uint16))[-3:].tolist() == [256, 65535, 65535]


def test_without_pillow_the_error_says_what_to_install(monkeypatch, tmp_path):
    real = importlib.import_module

    def refuse(name, *args):
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(GpupoolError, match='pip install "pillow>=11"'):
        images.read(tmp_path / "x.png")
