"""From machine code to a list of instructions: nvdisasm's text, read.

The disassembler is the one of the wheel nvidia-cuda-nvdisasm, or any on PATH.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from gpupool.errors import GpupoolError

_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(?:(@!?\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"\s*([^\s/:][^\s:]*):$")


@dataclass(frozen=True)
class Instruction:
    """One SASS instruction; ``opcode`` with its modifiers, ``guard`` such as @!P0 or empty."""

    address: int
    guard: str
    opcode: str
    operands: tuple[str, ...]

    @cached_property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @cached_property
    def modifiers(self) -> frozenset[str]:
        """The opcode's modifiers."""
        return frozenset(self.opcode.split(".")[1:])

    @cached_property
    def width(self) -> int:
        """Bytes that a load or store moves for one thread."""
        for modifier, width in (("128", 16), ("64", 8), ("U16", 2), ("S16", 2), ("U8", 1)):
            if modifier in self.modifiers:
                return width
        return 1 if "S8" in self.modifiers else 4

    def __repr__(self) -> str:
        text = f"{self.guard} {self.opcode} {', '.join(self.operands)}"
        return f"{self.address:04x}: {text.strip()}"


@cache
def disassembler() -> str:
    """Return the path of nvdisasm: a wheel's, then PATH's."""
    for folder in map(Path, sys.path):
        for found in sorted(folder.glob("nvidia/*/bin/nvdisasm*"), reverse=True):
            return str(found)
    if found_on_path := shutil.which("nvdisasm"):
        return found_on_path
    raise GpupoolError(
        "nvdisasm is not installed: python3 -m pip install nvidia-cuda-nvdisasm, or CUDA's toolkit"
    )


def disassemble(cubin: bytes) -> dict[str, tuple[Instruction, ...]]:
    """Return the instructions of every kernel of a cubin, by its symbol."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run(
            # Without the analysis of data flow, whose remarks nobody reads: a third of the time.
            [disassembler(), "-c", "-ndf", str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise GpupoolError(f"nvdisasm failed: {done.stderr.strip()}")
    _, *parts = re.split(r"\.section\s+\.text\.(\w+),", done.stdout)
    return dict(zip(parts[::2], map(parse, parts[1::2]), strict=True))


def parse(text: str) -> tuple[Instruction, ...]:
    r"""Read nvdisasm's text; labels become addresses.

    >>> parse('.L_x_1:\n  /*0010*/  @!P0 BRA `(.L_x_1) ;')
    (0010: @!P0 BRA 0x10,)
    >>> parse('.text.f:\n  /*0000*/  RET.REL.NODEC R4 `(.text.f) ;')[0].operands
    ('R4', '0x0')
    """
    rows: list[tuple[int, str, str, str]] = []
    pending: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            address = int(match[1], 16)
            labels.update(dict.fromkeys(pending, address))
            pending.clear()
            rows.append((address, match[2] or "", match[3], match[4]))
        elif match := _LABEL.match(line):
            pending.append(match[1])

    def operand(field: str) -> str:
        field = field.strip().replace(".reuse", "")
        if match := re.fullmatch(r"`\((.*)\)", field):
            return hex(labels[match[1]])
        return field

    return tuple(
        Instruction(address, guard, opcode, tuple(map(operand, _split(fields))))
        for address, guard, opcode, fields in rows
    )


def _split(fields: str) -> list[str]:
    """Cut operands at commas and before a label; what nvdisasm remarks in (* and *) is none."""
    bare = re.sub(r"\(\*.*?\*\)", "", fields)
    return [field for field in re.split(r",|\s(?=`\()", bare) if field.strip()]


def parameter_base(cubin: bytes, symbol: str, size: int) -> int:
    """Return where a kernel's parameters of ``size`` bytes begin in constant bank 0."""
    sections = _sections(cubin)
    name = f".nv.constant0.{symbol}"
    if name not in sections:
        raise GpupoolError(f"the cubin has no section {name}")
    return sections[name] - size


def _sections(elf: bytes) -> dict[str, int]:
    """Return the size of every section of a 64-bit ELF file."""
    table, entry, count, names = (
        struct.unpack_from("<Q", elf, 0x28)[0],
        *struct.unpack_from("<HHH", elf, 0x3A),
    )
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * entry) for i in range(count)]
    texts = headers[names][4]
    return {elf[texts + h[0] : elf.index(b"\0", texts + h[0])].decode(): h[5] for h in headers}
