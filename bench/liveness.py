"""Which instructions decide where the lanes of a kernel go: the others are not computed.

An instruction is needed where something needed may read what it writes. Conditions of branches and
exits, guards of loads and stores, and spilled registers are. A guarded write replaces nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .lanes import MEMORY, PLACED, Fields, computed, following, written
from .sass import Instruction

_NAME = re.compile(r"U?[RP]\d+")
_PREDICATES = tuple(f"{kind}{i}" for kind in ("P", "UP") for i in range(8))

CONTROL = frozenset(("BRA", "EXIT", "CALL", "RET", "BSYNC", "BSSY", "BREAK", "BMOV"))
"""Instructions that steer lanes themselves."""

FOREIGN = frozenset(("BRX", "JMX", "JMP", "BRXU", "JMXU", "LEPC", "RPCMOV"))
"""Control flow that pooling kernels have no use for and that is not stepped through."""

LOCAL = frozenset(("LDL", "STL"))
"""Those of spilled registers, whose places are not told apart."""

_Names = frozenset[str]


def passed_over(code: Sequence[Instruction]) -> list[int]:
    """Return how many instructions from each one on are not needed and access no memory."""
    runs = [0] * (len(code) + 1)
    for i, needed in reversed(list(enumerate(_needed(code)))):
        plain = not needed and code[i].name not in CONTROL | FOREIGN | MEMORY
        runs[i] = runs[i + 1] + 1 if plain else 0
    return runs[:-1]


def _needed(code: Sequence[Instruction]) -> list[bool]:
    """Go backwards through the code until nothing more is found to be read."""
    steps = [
        (writes(one), _replaces(one), _decisive(one), reads(one), after)
        for one, after in zip(code, _successors(code), strict=True)
    ]
    read_from: list[_Names] = [frozenset()] * (len(code) + 1)
    needed = [one.name in CONTROL | LOCAL for one in code]
    changed = True
    while changed:
        changed = False
        for i, (results, replaced, decisive, operands, after) in reversed(list(enumerate(steps))):
            behind = frozenset[str]().union(*(read_from[successor] for successor in after))
            needed[i] = needed[i] or not results.isdisjoint(behind)
            read = (behind - replaced) | decisive | (operands if needed[i] else frozenset())
            changed |= read != read_from[i]
            read_from[i] = read
    return needed


def _successors(code: Sequence[Instruction]) -> list[list[int]]:
    """Return where lanes may go from each instruction: back from a function behind any call."""
    index = {instruction.address: i for i, instruction in enumerate(code)}
    behind_calls = [i + 1 for i, one in enumerate(code) if one.name == "CALL"]
    found = []
    for i, one in enumerate(code):
        if one.name in ("BRA", "CALL"):
            found.append([index[int(one.operands[-1], 16)], i + 1])
        else:
            found.append(behind_calls if one.name == "RET" else [i + 1])
    return found


def _decisive(instruction: Instruction) -> _Names:
    """Return what it reads to decide, whether or not what it writes is needed."""
    if instruction.name in CONTROL | LOCAL:
        return _registers(instruction, (*instruction.operands, instruction.guard))
    if instruction.name not in MEMORY:
        return frozenset()
    address = instruction.operands[:2] if instruction.name in PLACED else ()
    return _registers(instruction, (*address, instruction.guard))


def reads(instruction: Instruction) -> _Names:
    """Return what its results depend on: those that are not computed, on the guard alone."""
    operands = instruction.operands if computed(instruction) else ()
    return _registers(instruction, (*operands, instruction.guard))


def writes(instruction: Instruction) -> _Names:
    """Return what it may write."""
    if instruction.name in CONTROL or not instruction.operands:
        return frozenset()
    fields = Fields.of(instruction.operands)
    results = (fields.target, *fields.first[:2], *fields.second) if computed(instruction) else ()
    return _registers(instruction, results) | frozenset(written(instruction))


def _replaces(instruction: Instruction) -> _Names:
    """Return that of which it leaves nothing."""
    if instruction.guard or instruction.name in CONTROL or not instruction.operands:
        return frozenset()
    fields = Fields.of(instruction.operands)
    return frozenset(filter(_NAME.fullmatch, (*fields.first[:1], fields.target)))


def _registers(instruction: Instruction, operands: Iterable[str]) -> _Names:
    """Return the registers that operands name, each the first of several words."""
    found: list[str] = []
    for operand in operands:
        if operand == "PR":
            found += _PREDICATES
        for name in _NAME.findall(operand):
            found.append(name)
            for _ in range(_words(instruction) - 1):
                found.append(following(found[-1]))
    return frozenset(found)


def _words(instruction: Instruction) -> int:
    """Return the most registers that an operand of an instruction may be."""
    if instruction.name in LOCAL or instruction.name in ("LDC", "ULDC"):
        return max(1, instruction.width // 4)
    several = instruction.modifiers & {"WIDE", "HI", "S64", "U64"}
    return 2 if several or instruction.name in ("CS2R", *PLACED) else 1
