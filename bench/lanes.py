"""The integer half of a Hopper multiprocessor: registers of many lanes, and what is known of them.

Everything that can steer a pooling kernel is computed: integers, predicates, constants, spilled
registers. What memory and floating point give is unknown, and so is what follows from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from gpupool.arrays import Array

from .sass import Instruction

LOW, SIGN = np.uint64(0xFFFFFFFF), np.uint64(0x80000000)
WORD, ONE = np.uint64(32), np.uint64(1)

_REGISTER = re.compile(r"U?R\d+")
_PREDICATE = re.compile(r"!?U?P(T|\d)")
_CONSTANT = re.compile(r"c\[0x0\]\[(?:(U?R\d+|RZ)\+?)?(-?0x[0-9a-f]+)?\]")
_INTEGER = re.compile(r"-?(0x[0-9a-f]+|\d+)")


_ZEROS = ("RZ", "URZ", "SR_TID.Y", "SR_TID.Z", "SR_CTAID.Z", "SRZ", "SR_CgaCtaId")

_YES, _NO, _NONE = np.ones(1, bool), np.zeros(1, bool), np.zeros(1, np.uint64)

EVERY = _YES
"""All lanes that still run, as those that are active."""


@dataclass
class Value:
    """32 bits of every lane, held in uint64 (a predicate: 0 or 1), and where they are known.

    One number stands for all lanes where it is the same in each. Nothing is ever written in place.
    """

    bits: Array
    known: Array
    partly: Array = field(default_factory=lambda: _NONE)
    """Bits that are known where not all are: a register may hold predicates among what is not."""


UNKNOWN = Value(np.zeros(1, np.uint64), _NO)
TRUE = Value(np.ones(1, np.uint64), _YES)


def integer(n: int) -> Value:
    """Return the same known number in every lane."""
    return Value(np.array([n & 0xFFFFFFFF], np.uint64), _YES)


@cache
def _literal(text: str) -> Value | None:
    return integer(int(text, 0)) if _INTEGER.fullmatch(text) else None


@cache
def _constant_place(name: str) -> tuple[str | None, int] | None:
    """Return a constant's register, if any, and offset."""
    match = _CONSTANT.fullmatch(name)
    return match and (match[1], int(match[2] or "0", 16))


def signed(bits: Array) -> Array:
    """Extend 32 bits to 64, two's complement in uint64."""
    return (bits ^ SIGN) - SIGN


class Lanes:
    """Registers, predicates, constants and local memory of some lanes."""

    def __init__(self, thread: Array, block: tuple[Array, Array], constants: bytes) -> None:
        special = {
            "SR_TID.X": thread, "SR_LANEID": thread % 32, "SR_CTAID.X": block[0],
            "SR_CTAID.Y": block[1],
        }  # fmt: skip
        self._given = {
            name: Value(numbers.astype(np.uint64), _YES) for name, numbers in special.items()
        } | dict.fromkeys(_ZEROS, integer(0))
        words = np.frombuffer(constants + b"\0" * (-len(constants) % 4), np.uint32)
        self._constants = words.astype(np.uint64)
        self._held: dict[str, Value] = {}

    # Reading

    def predicate(self, text: str) -> Value:
        """Return a predicate, negated by an exclamation mark."""
        name = text.removeprefix("!")
        value = TRUE if name in ("PT", "UPT") else self._held.get(name, UNKNOWN)
        return Value(value.bits ^ ONE, value.known) if text != name else value

    def read(self, text: str, *, carries: bool = False) -> Value:
        """Return an integer operand; with ``carries`` a negated 0 is 2**32, as adders see it."""
        if (literal := _literal(text)) is not None:
            return literal
        sign = text[0] if text[0] in "-~" else ""
        name = text[len(sign) :]
        value = self._plain(name.strip("|"))
        if text[0] not in "-~|":
            return value
        bits = value.bits
        if name.startswith("|"):
            bits = np.where(bits & SIGN, (np.uint64(0) - bits) & LOW, bits)
        if sign == "~":
            bits = bits ^ LOW
        elif sign and carries:
            bits = (bits ^ LOW) + ONE
        elif sign:
            bits = (np.uint64(0) - bits) & LOW
        return Value(bits, value.known)

    def _plain(self, name: str) -> Value:
        if (value := self._held.get(name) or self._given.get(name)) is not None:
            return value
        if (place := _constant_place(name)) is None:
            return UNKNOWN
        register, offset = place
        if register is None:
            self._given[name] = self._constant(integer(0), offset)
            return self._given[name]
        return self._constant(self.read(register), offset)

    def _constant(self, base: Value, offset: int) -> Value:
        places = ((base.bits + np.uint64(offset & 0xFFFFFFFF)) & LOW) >> np.uint64(2)
        inside = places < len(self._constants)
        return Value(self._constants[np.where(inside, places, 0)], base.known & inside)

    def pair(self, text: str) -> Value:
        """Return 64 bits: a register or constant and the one after it, or an extended number."""
        low = self.read(text)
        if text in ("RZ", "URZ") or _INTEGER.fullmatch(text):
            return Value(signed(low.bits), low.known)
        high = self.read(following(text))
        return Value(low.bits | (high.bits << WORD), low.known & high.known)

    # Writing

    def write(self, name: str, value: Value, active: Array, guard: Value) -> None:
        """Set a register of the lanes that are active and not guarded off."""
        if name in ("RZ", "URZ", "PT", "UPT"):
            return
        if guard is TRUE and active is EVERY:
            self._held[name] = value
            return
        held, where, known = self._held.get(name, UNKNOWN), active, value.known
        if guard is not TRUE:
            where = active & ((guard.bits != 0) | ~guard.known)
            known = _both(known, guard.known)
        partly = _NONE
        if value.partly is not _NONE or held.partly is not _NONE:
            partly = np.where(where, np.where(guard.known, value.partly, _NONE), held.partly)
        if known is not _YES or held.known is not _YES:
            known = np.where(where, known, held.known)
        self._held[name] = Value(np.where(where, value.bits, held.bits), known, partly)

    def execute(self, instruction: Instruction, active: Array, guard: Value) -> None:
        """Carry out one instruction that does not branch."""
        if not instruction.operands or instruction.name in SILENT:
            return
        handler = _handler(instruction)
        if handler is None:
            for target in written(instruction):
                self.write(target, UNKNOWN, active, guard)
            return
        for target, value in list(handler(self, instruction)):
            self.write(target, value, active, guard)


@cache
def following(name: str) -> str:
    """Name the register or constant after this one.

    >>> following("R7"), following("c[0x0][0x21c]")
    ('R8', 'c[0x0][0x220]')
    """
    if match := re.fullmatch(r"(-?U?R)(\d+)", name):
        return f"{match[1]}{int(match[2]) + 1}"
    if match := re.fullmatch(r"(c\[0x0\]\[.*?)(0x[0-9a-f]+)\]", name):
        return f"{match[1]}{int(match[2], 16) + 4:#x}]"
    return name


@dataclass
class Fields:
    """Operands by their place: predicates first, a register, predicates, values, predicates."""

    first: list[str]
    target: str
    second: list[str]
    values: list[str]
    last: list[str]

    @classmethod
    @cache
    def of(cls, operands: tuple[str, ...]) -> Fields:
        """Sort the operands of an instruction."""
        left = list(operands)

        def take(predicates: bool) -> list[str]:
            taken = []
            while left and bool(_PREDICATE.fullmatch(left[0])) is predicates:
                taken.append(left.pop(0))
            return taken

        first = take(True)
        target = left.pop(0) if left else ""
        return cls(first, target, take(True), take(False), take(True))


SILENT = frozenset(
    (
        "ST", "STG", "STS", "RED", "REDG", "BAR", "MEMBAR", "NOP", "WARPSYNC", "DEPBAR", "LDGSTS",
        "LDGDEPBAR", "ERRBAR", "CCTL", "CCTLL", "FENCE", "NANOSLEEP", "YIELD", "PREFETCH",
        "UTMALDG", "UTMASTG", "UTMACMDFLUSH", "UTMACCTL", "ARRIVES", "BPT",
    )
)  # fmt: skip
"""Instructions that write no register."""

MEMORY = frozenset(
    (
        "LD", "LDG", "LDS", "LDL", "LDGSTS", "LDSM", "ST", "STG", "STS", "STL", "ATOM", "ATOMG",
        "ATOMS", "RED", "REDG",
    )
)  # fmt: skip
"""Instructions that load or store."""

PLACED = frozenset(("LDG", "STG", "LDS", "STS"))
"""Those of memory and of shared memory, whose addresses are followed."""


@cache
def written(instruction: Instruction) -> tuple[str, ...]:
    """Name what an instruction without a handler writes."""
    fields = Fields.of(instruction.operands)
    name, modifiers = instruction.name, instruction.opcode.split(".")[1:]
    words = 1
    if name in MEMORY or name == "LDC":
        words = max(1, instruction.width // 4)
    elif name in ("DADD", "DMUL", "DFMA"):
        words = 2
    elif name in ("F2F", "I2F", "FRND"):
        words = 2 if modifiers[:1] == ["F64"] else 1
    elif name == "F2I":
        words = 2 if {"S64", "U64"} & set(modifiers) else 1
    elif "MMA" in name and name != "HFMA2":
        words = 4
    targets = [fields.target]
    for _ in range(words - 1):
        targets.append(following(targets[-1]))
    return (*fields.first[:2], *filter(_REGISTER.fullmatch, targets))


# What the instructions do

_Results = Iterator[tuple[str, Value]]
_HANDLERS: dict[str, Callable[[Lanes, Instruction], _Results]] = {}


def _handler(instruction: Instruction) -> Callable[[Lanes, Instruction], _Results] | None:
    name = instruction.name
    return _HANDLERS.get(name) or _HANDLERS.get(name.removeprefix("U"))


def computed(instruction: Instruction) -> bool:
    """Whether what it writes is known where its operands are."""
    return _handler(instruction) is not None


def _handles(*names: str) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        _HANDLERS.update(dict.fromkeys(names, function))
        return function

    return register


def _words(target: str, bits: Array, known: Array) -> _Results:
    yield target, Value(bits & LOW, known)
    yield following(target), Value(bits >> WORD, known)


def _known(*values: Value) -> Array:
    known = _YES
    for value in values:
        known = _both(known, value.known)
    return known


def _both(known: Array, other: Array) -> Array:
    """Return where both are known, without a look at lanes where that is everywhere."""
    if known is _YES:
        return other
    return known if other is _YES else known & other


@_handles("MOV", "R2UR", "S2R", "S2UR")
def _move(lanes: Lanes, instruction: Instruction) -> _Results:
    fields = Fields.of(instruction.operands)
    yield fields.target, lanes.read(fields.values[0])


@_handles("CS2R")
def _move_special(lanes: Lanes, instruction: Instruction) -> _Results:
    target, source = instruction.operands
    value = lanes.read(source)
    yield target, value
    if "32" not in instruction.modifiers:
        yield following(target), Value(value.bits * np.uint64(0), value.known)


@_handles("LDC")
def _load_constant(lanes: Lanes, instruction: Instruction) -> _Results:
    target, source = instruction.operands
    value = lanes.read(source)
    if instruction.width < 4:
        yield target, UNKNOWN
        return
    yield target, value
    for _ in range(instruction.width // 4 - 1):
        target, source = following(target), following(source)
        yield target, lanes.read(source)


@_handles("LDL")
def _reload(lanes: Lanes, instruction: Instruction) -> _Results:
    target, place = instruction.operands
    for i in range(max(1, instruction.width // 4)):
        yield target, lanes.read(f"local {place}+{4 * i}")
        target = following(target)


@_handles("STL")
def _spill(lanes: Lanes, instruction: Instruction) -> _Results:
    place, source = instruction.operands
    for i in range(max(1, instruction.width // 4)):
        yield f"local {place}+{4 * i}", lanes.read(source)
        source = following(source)


@_handles("IADD3", "VIADD")
def _add(lanes: Lanes, instruction: Instruction) -> _Results:
    fields = Fields.of(instruction.operands)
    values = [lanes.read(text, carries=True) for text in fields.values]
    if "X" in instruction.modifiers:
        values += [lanes.predicate(text) for text in fields.last]
    total = sum((value.bits for value in values), np.zeros(1, np.uint64))
    known = _known(*values)
    yield fields.target, Value(total & LOW, known)
    for i, carry in enumerate(fields.second):
        yield carry, Value(((total >> WORD) > i).astype(np.uint64), known)


@_handles("IMAD")
def _multiply_add(lanes: Lanes, instruction: Instruction) -> _Results:
    fields, modifiers = Fields.of(instruction.operands), instruction.modifiers
    a, b = (lanes.read(text) for text in fields.values[:2])
    wide = bool(modifiers & {"HI", "WIDE"})
    c = lanes.pair(fields.values[2]) if wide else lanes.read(fields.values[2])
    known = _known(a, b, c)
    if wide:
        extend = (lambda bits: bits) if "U32" in modifiers else signed
        product = extend(a.bits) * extend(b.bits)
    else:
        product = a.bits * b.bits
    total = product + c.bits
    if "X" in modifiers:
        for text in fields.last:
            carry = lanes.predicate(text)
            total, known = total + carry.bits, known & carry.known
    if "HI" in modifiers:
        yield fields.target, Value(total >> WORD, known)
    elif wide:
        yield from _words(fields.target, total, known)
        for carry_out in fields.second:
            yield carry_out, Value((total < product).astype(np.uint64), known)
    else:
        yield fields.target, Value(total & LOW, known)


@_handles("LEA")
def _scaled_add(lanes: Lanes, instruction: Instruction) -> _Results:
    fields, modifiers = Fields.of(instruction.operands), instruction.modifiers
    *sources, shift_text = fields.values
    if not _INTEGER.fullmatch(shift_text):
        sources, shift_text = fields.values, "0"
    shift = np.uint64(int(shift_text, 0))
    a, b = lanes.read(sources[0]), lanes.read(sources[1], carries=True)
    values = [a, b]
    if "SX32" in modifiers:
        scaled = (signed(a.bits) << shift) >> WORD
    elif "HI" in modifiers:
        upper = lanes.read(sources[2])
        values.append(upper)
        scaled = ((upper.bits << WORD | a.bits) << shift) >> WORD
    else:
        scaled = (a.bits << shift) & LOW
    total = scaled + b.bits
    if "X" in modifiers:
        carries = [lanes.predicate(text) for text in fields.last]
        values += carries
        total = sum((carry.bits for carry in carries), total)
    known = _known(*values)
    yield fields.target, Value(total & LOW, known)
    for carry_out in fields.second:
        yield carry_out, Value(total >> WORD, known)


@_handles("SHF")
def _funnel_shift(lanes: Lanes, instruction: Instruction) -> _Results:
    target, *texts = instruction.operands
    low, amount, high = (lanes.read(text) for text in texts)
    modifiers = instruction.modifiers
    most = np.uint64(31 if "W" in modifiers else 63)
    shift = amount.bits & most if "W" in modifiers else np.minimum(amount.bits, most)
    both = high.bits << WORD | low.bits
    if "L" in modifiers:
        moved = both << shift
    elif modifiers & {"S32", "S64"}:
        moved = (both.view(np.int64) >> shift.astype(np.int64)).view(np.uint64)
    else:
        moved = both >> shift
    yield target, Value(moved >> WORD if "HI" in modifiers else moved & LOW,
                        _known(low, amount, high))  # fmt: skip


_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
    "EQ": np.equal, "NE": np.not_equal,
}  # fmt: skip


@_handles("ISETP")
def _compare(lanes: Lanes, instruction: Instruction) -> _Results:
    *targets, a_text, b_text = (text for text in instruction.operands[:4])
    tail = instruction.operands[4:]
    modifiers = instruction.modifiers
    a, b = lanes.read(a_text), lanes.read(b_text)
    order = next(name for name in _COMPARE if name in modifiers)
    left, right = a.bits, b.bits
    if "U32" not in modifiers:
        left, right = signed(left).view(np.int64), signed(right).view(np.int64)
    result, known = _COMPARE[order](left, right), _known(a, b)
    if "EX" in modifiers:
        lower = lanes.predicate(tail[1])
        equal = left == right
        strict = order if order == "NE" else {"LE": "LT", "GE": "GT"}.get(order, order)
        decided = np.zeros(1, bool) if order == "EQ" else _COMPARE[strict](left, right)
        result = decided | (equal & (lower.bits != 0))
        known = known & (lower.known | ~equal)
    other = lanes.predicate(tail[0])
    for target, bit in zip(targets, (result, ~result), strict=True):
        yield target, _combine(Value(bit.astype(np.uint64), known), other, modifiers)


def _combine(a: Value, b: Value, modifiers: frozenset[str]) -> Value:
    """Join two predicates; one alone decides where it can."""
    both = a.known & b.known
    if "OR" in modifiers:
        decided = (a.known & (a.bits != 0)) | (b.known & (b.bits != 0))
        return Value(a.bits | b.bits | decided, both | decided)
    if "XOR" in modifiers:
        return Value(a.bits ^ b.bits, both)
    decided = (a.known & (a.bits == 0)) | (b.known & (b.bits == 0))
    return Value(a.bits & b.bits & ~decided, both | decided)


def _look_up(table: int, values: Sequence[Value], ones: np.uint64) -> tuple[Array, Array]:
    """Return the bits of a table of three inputs that may be 0 and those that may be 1."""
    may_be = []
    for value in values:
        free = _NONE if value.known is _YES else np.where(value.known, _NONE, ones & ~value.partly)
        may_be.append((value.bits ^ ones | free, value.bits | free))
    can = [_NONE, _NONE]
    for row in range(8):
        first, second, third = (may_be[i][row >> 2 - i & 1] for i in range(3))
        can[table >> row & 1] = can[table >> row & 1] | first & second & third
    return can[0], can[1]


@_handles("PLOP3")
def _logic_of_predicates(lanes: Lanes, instruction: Instruction) -> _Results:
    targets, sources = instruction.operands[:2], instruction.operands[2:5]
    values = [lanes.predicate(text) for text in sources]
    for target, text in zip(targets, instruction.operands[5:], strict=False):
        zeros, ones = _look_up(int(text, 16), values, ONE)
        yield target, Value(ones, zeros != ones)


@_handles("LOP3")
def _logic(lanes: Lanes, instruction: Instruction) -> _Results:
    fields = Fields.of(instruction.operands)
    values = [lanes.read(text) for text in fields.values[:3]]
    zeros, ones = _look_up(int(fields.values[3], 16), values, LOW)
    partly = zeros ^ ones
    known = partly == LOW
    yield fields.target, Value(ones & partly, known, partly)
    for target in fields.first:
        certain = ones & partly != 0
        yield target, Value(certain.astype(np.uint64), known | certain)


@_handles("VIMNMX", "VIADDMNMX", "IMNMX", "VIMNMX3")
def _extreme(lanes: Lanes, instruction: Instruction) -> _Results:
    fields, name = Fields.of(instruction.operands), instruction.name
    values = [lanes.read(text) for text in fields.values]
    way = lanes.predicate(fields.last[-1])
    if name == "VIADDMNMX":
        first, second, *rest = values
        values = [Value((first.bits + second.bits) & LOW, _known(first, second)), *rest]
    numbers = [value.bits for value in values]
    if "U32" not in instruction.modifiers:
        numbers = [signed(bits).view(np.int64) for bits in numbers]
    least = greatest = numbers[0]
    for number in numbers[1:]:
        least, greatest = np.minimum(least, number), np.maximum(greatest, number)
    found = np.where(way.bits != 0, least, greatest).astype(np.int64)
    if "RELU" in instruction.modifiers:
        found = np.maximum(found, 0)
    yield fields.target, Value(found.view(np.uint64) & LOW, _known(*values, way))


@_handles("IABS")
def _absolute(lanes: Lanes, instruction: Instruction) -> _Results:
    target, text = instruction.operands
    yield target, lanes.read(f"|{text}|")


@_handles("FLO", "POPC")
def _bits_of(lanes: Lanes, instruction: Instruction) -> _Results:
    """Find the leading one (FLO; counted from the other end with SH), or count ones."""
    target, text = instruction.operands
    value = lanes.read(text)
    bits = value.bits
    if instruction.name == "POPC":
        yield target, Value(np.bitwise_count(bits).astype(np.uint64), value.known)
        return
    if "U32" not in instruction.modifiers:
        bits = np.where(bits & SIGN, bits ^ LOW, bits)
    place = np.log2(np.maximum(bits, 1).astype(np.float64)).astype(np.uint64)
    if "SH" in instruction.modifiers:
        place = np.uint64(31) - place
    yield target, Value(np.where(bits == 0, LOW, place), value.known)


@_handles("SEL")
def _select(lanes: Lanes, instruction: Instruction) -> _Results:
    fields = Fields.of(instruction.operands)
    a, b = (lanes.read(text) for text in fields.values)
    way = lanes.predicate(fields.last[0])
    chosen = way.bits != 0
    yield (
        fields.target,
        Value(np.where(chosen, a.bits, b.bits), way.known & np.where(chosen, a.known, b.known)),
    )


@_handles("PRMT")
def _permute(lanes: Lanes, instruction: Instruction) -> _Results:
    target, a_text, selector, b_text = instruction.operands
    if not _INTEGER.fullmatch(selector) or instruction.modifiers:
        yield target, UNKNOWN
        return
    a, b = lanes.read(a_text), lanes.read(b_text)
    source = b.bits << WORD | a.bits
    bits = np.zeros(1, np.uint64)
    for i in range(4):
        nibble = int(selector, 16) >> 4 * i & 15
        byte = source >> np.uint64(8 * (nibble & 7)) & np.uint64(255)
        if nibble & 8:
            byte = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
        bits = bits | byte << np.uint64(8 * i)
    yield target, Value(bits, _known(a, b))


@_handles("HFMA2")
def _constant_by_halves(_: Lanes, instruction: Instruction) -> _Results:
    """Zero times zero plus a pair of halves: how the compiler writes some integers."""
    target, *texts = instruction.operands
    if [text.strip("-") for text in texts[:2]] != ["RZ", "RZ"] or len(texts) != 4:
        yield target, UNKNOWN
        return
    high, low = (int(np.float16(float(text)).view(np.uint16)) for text in texts[2:])
    yield target, integer(high << 16 | low)


# An integer division goes through floating point: a reciprocal, made exact by integers.


def _as_float(bits: Array) -> Array:
    return bits.astype(np.uint32).view(np.float32)


def _float_bits(numbers: Array) -> Array:
    return numbers.astype(np.float32).view(np.uint32).astype(np.uint64)


@_handles("I2F", "I2FP")
def _to_float(lanes: Lanes, instruction: Instruction) -> _Results:
    target, text = instruction.operands
    modifiers = instruction.modifiers
    if "F64" in modifiers or "F16" in modifiers:
        for target in written(instruction):
            yield target, UNKNOWN
        return
    value = lanes.pair(text) if modifiers & {"S64", "U64"} else lanes.read(text)
    bits = value.bits if modifiers & {"U32", "U64", "S64"} else signed(value.bits)
    exact = bits if modifiers & {"U32", "U64"} else bits.view(np.int64)
    rounded = exact.astype(np.float32)
    if "RP" in modifiers:
        up = np.nextafter(rounded, np.float32(np.inf))
        rounded = np.where(rounded.astype(np.longdouble) < exact, up, rounded)
    yield target, Value(_float_bits(rounded), value.known)


@_handles("MUFU")
def _reciprocal(lanes: Lanes, instruction: Instruction) -> _Results:
    target, text = instruction.operands
    if "RCP" not in instruction.modifiers or not _REGISTER.fullmatch(text):
        yield target, UNKNOWN
        return
    value = lanes.read(text)
    yield target, Value(_float_bits(np.float32(1) / _as_float(value.bits)), value.known)


@_handles("F2I")
def _to_integer(lanes: Lanes, instruction: Instruction) -> _Results:
    target, text = instruction.operands
    modifiers = instruction.modifiers
    if modifiers & {"F64", "F16"} or "TRUNC" not in modifiers or not _REGISTER.fullmatch(text):
        for target in written(instruction):
            yield target, UNKNOWN
        return
    value = lanes.read(text)
    number = np.nan_to_num(np.trunc(_as_float(value.bits).astype(np.float64)))
    if modifiers & {"U64", "S64"}:
        yield from _words(target, np.clip(number, 0, 2.0**63).astype(np.uint64), value.known)
    else:
        yield target, Value(np.clip(number, 0, 2.0**32 - 1).astype(np.uint64), value.known)


@_handles("P2R")
def _pack_predicates(lanes: Lanes, instruction: Instruction) -> _Results:
    target, _, base_text, mask_text = instruction.operands
    mask = int(mask_text, 16)
    if instruction.modifiers:  # another byte than the lowest
        yield target, UNKNOWN
        return
    base = lanes.read(base_text)
    bits, known = base.bits & np.uint64(~mask & 0xFFFFFFFF), base.known
    for i in range(7):
        if mask >> i & 1:
            value = lanes.predicate(f"P{i}")
            bits, known = bits | value.bits << np.uint64(i), known & value.known
    yield target, Value(bits, known)


@_handles("R2P")
def _unpack_predicates(lanes: Lanes, instruction: Instruction) -> _Results:
    _, source, mask_text = instruction.operands
    value = lanes.read(source)
    for i in range(7):
        if int(mask_text, 16) >> i & 1:
            yield f"P{i}", Value(value.bits >> np.uint64(i) & ONE, value.known)


@_handles("B2R")
def _barrier_result(_: Lanes, instruction: Instruction) -> _Results:
    for target in instruction.operands:
        yield target, UNKNOWN


@_handles("VOTE")
def _vote(_: Lanes, instruction: Instruction) -> _Results:
    fields = Fields.of(instruction.operands)
    for target in (*fields.first[:1], fields.target, *fields.second[:1]):
        if target:
            yield target, UNKNOWN
