"""How many instructions a kernel issues: its machine code, stepped through warp by warp.

The counting rule. A sample of warps, spread over the grid, goes through the SASS with the launch's
real parameters: integers, predicates, constants and convergence barriers are computed, so that trip
counts, border paths and divergence are those of the case. What comes from memory or floating point
is unknown, but for what an integer division needs. A branch that hangs on an unknown takes the way
that may go through fewer instructions to the end, so that the second looks of averages and norms
and the slow path of a division do not count, and is reported as assumed. Each instruction issued
for at least one lane of a warp counts for all 32, predicated off or not, branches and barriers
included: that is what takes a slot of the scheduler. Bytes stored are added up too: they must come
to the size of the outputs, which shows that the sample went where real data would go.

    issued    the mean of these slots over the sampled warps
    path      the instructions of a single lane, the count most frequent among the lanes
    accesses  loads and stores of the mean lane, by instruction and width
    lines     lines of the first cache that the mean warp's loads and stores look up
    sectors   those that its stores write
    turns     how often shared memory gives or takes words for it

Addresses that hang on data touch nothing, nor do generic ones: those of elements that a code or a
second look finds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpupool.arrays import Array
from gpupool.errors import GpupoolError
from gpupool.planner.banks import turns
from gpupool.planner.launches import LINE_BYTES, SECTOR_BYTES, WARP, round_up

from .lanes import EVERY, MEMORY, PLACED, TRUE, Lanes, Value
from .liveness import CONTROL, FOREIGN, passed_over
from .sass import Instruction
from .traffic import address, distinct

STRAY = frozenset(("DIV", "CONV"))
"""Branches only of warps that diverged where they should not."""

CALLED = 100
"""Instructions that a function counts as where ways are compared."""

TOUCHED = "lines", "sectors", "turns"
"""What accesses of warps are counted in."""

LIMIT = 1_000_000
"""Steps after which a kernel counts as endless."""


@dataclass(frozen=True)
class Counts:
    """What one launch does, for each of its threads: see the counting rule."""

    issued: float
    path: int
    accesses: dict[tuple[str, int], float]
    assumed: int
    lines: float
    sectors: float
    turns: float

    def moved(self, *names: str) -> float:
        """Bytes that the mean lane moves by these instructions."""
        return sum(times * width for (name, width), times in self.accesses.items() if name in names)


def whole_warps(threads: int) -> int:
    """Return the lanes of a block: its last warp may have some without a thread.

    >>> whole_warps(256), whole_warps(129)
    (256, 160)
    """
    return round_up(threads, WARP)


def sample(grid: tuple[int, int], threads: int, blocks: int) -> tuple[Array, Array, Array]:
    """Choose blocks spread over the grid; return thread, block x and block y of every lane."""
    total = grid[0] * grid[1]
    count = min(blocks, total)
    # One block from each of as many equal parts, at no regular distance: borders are periodic.
    places = (np.arange(count) + np.random.default_rng(0).random(count)) * (total / count)
    lanes = whole_warps(threads)
    flat = places.astype(np.int64).repeat(lanes)
    return np.tile(np.arange(lanes), count), flat % grid[0], flat // grid[0]


def constant_bank(grid: tuple[int, int], threads: int, base: int, parameters: bytes) -> bytes:
    """Lay out constant bank 0: block and grid sizes at its start, parameters at ``base``."""
    sizes = np.array([threads, 1, 1, *grid, 1], np.uint32).tobytes()
    return sizes + bytes(base - len(sizes)) + parameters


def count(
    code: Sequence[Instruction], constants: bytes, lanes: tuple[Array, Array, Array]
) -> Counts:
    """Step lanes (whole warps, see ``sample``) through ``code``; ``constants`` is bank 0."""
    thread, *block = lanes
    threads = int.from_bytes(constants[:4], "little")
    stepper = _Stepper(code, Lanes(thread, (block[0], block[1]), constants), thread < threads)
    with np.errstate(all="ignore"):
        stepper.run()
    frequency = Counter(stepper.executed[thread < threads].tolist())
    path = max(frequency, key=lambda n: (frequency[n], n))
    accesses = {key: float(times.mean()) for key, times in sorted(stepper.accesses.items())}
    touched = (stepper.touched[what] / stepper.issued.size for what in TOUCHED)
    return Counts(float(stepper.issued.mean()), path, accesses, len(stepper.assumed), *touched)


class _Stepper:
    """Control flow: which lanes are where, and which wait at a convergence barrier."""

    def __init__(self, code: Sequence[Instruction], lanes: Lanes, alive: Array) -> None:
        self.code, self.lanes = code, lanes
        self.index = {instruction.address: i for i, instruction in enumerate(code)}
        self.longest = _longest(code, self.index)
        self.steers = [one.name in CONTROL or one.name in FOREIGN for one in code]
        self.passed_over = passed_over(code)
        self.alive, self.among = alive, EVERY
        self.at: dict[int, Array] = {0: self.alive.copy()}
        self.waiting: dict[int, Array] = {}
        self.members: dict[str, Array] = defaultdict(lambda: np.zeros(alive.size, bool))
        self.saved: dict[str, Array] = {}
        self.assumed: set[int] = set()
        self.issued = np.zeros(alive.size // WARP, np.int64)
        self.executed = np.zeros(alive.size, np.int64)
        self.accesses: dict[tuple[str, int], Array] = defaultdict(
            lambda: np.zeros(alive.size, np.int64)
        )
        self.touched = Counter[str]()

    def run(self) -> None:
        """Step the lanes that are furthest behind until all have left."""
        mask, steps, total = self.alive, 0, 0
        while self.at:
            place = min(self.at)
            active = self.at.pop(place)
            if active is not mask:
                self._tally(mask, steps)
                mask, steps = active, 0
                self.among = active if (self.alive & ~active).any() else EVERY
            if behind := self._straight_on(place, active):
                self._go(place + behind, active)
            else:
                self._steer(place, active)
            steps += behind or 1
            total += behind or 1
            if total > LIMIT:
                raise GpupoolError(f"a kernel takes more than {LIMIT} simulated steps")
        self._tally(mask, steps)
        if self.waiting:
            raise GpupoolError("simulated lanes wait for others that never come")

    def _straight_on(self, begin: int, active: Array) -> int:
        """Go through what steers nothing, as far as other lanes are; return the instructions."""
        place, end = begin, min(self.at, default=len(self.code))
        while place < end and not self.steers[place]:
            if passed := self.passed_over[place]:
                place = min(place + passed, end)
            else:
                self._compute(self.code[place], active)
                place += 1
        return place - begin

    def _tally(self, mask: Array, steps: int) -> None:
        self.executed += mask * steps
        self.issued += mask.reshape(-1, WARP).any(axis=1) * steps

    def _go(self, place: int, mask: Array) -> None:
        if place in self.at:
            self.at[place] = self.at[place] | mask
        elif mask.any():
            self.at[place] = mask

    def _guard(self, instruction: Instruction) -> Value:
        return self.lanes.predicate(instruction.guard[1:]) if instruction.guard else TRUE

    def _compute(self, instruction: Instruction, active: Array) -> None:
        name, guard = instruction.name, self._guard(instruction)
        if name in MEMORY:
            on = active if guard is TRUE else active & ((guard.bits != 0) | ~guard.known)
            self.accesses[name, instruction.width] += on
            if name in PLACED:
                self._touch(instruction, on)
        self.lanes.execute(instruction, self.among, guard)

    def _steer(self, place: int, active: Array) -> None:
        instruction = self.code[place]
        name, guard = instruction.name, self._guard(instruction)
        if name == "BRA":
            self._branch(place, instruction, active, guard)
        elif name == "EXIT":
            self._exit(place, active, guard)
        elif name == "CALL":
            self._go(_target(instruction, self.index), active)
        elif name == "RET":
            self._return(instruction, active)
        elif name == "BSYNC":
            waiting = self.waiting.get(place)
            self.waiting[place] = active if waiting is None else waiting | active
            self._release()
        elif name in FOREIGN:
            raise GpupoolError(f"the simulation does not follow {instruction}")
        else:
            self._barrier(instruction, active, guard)
            self._go(place + 1, active)

    def _barrier(self, instruction: Instruction, active: Array, guard: Value) -> None:
        name, operands = instruction.name, instruction.operands
        if name == "BSSY":
            self._set_members(operands[0], active, active)
        elif name == "BREAK":
            on = active & (guard.bits != 0)
            self.members[operands[-1]] &= ~on
            self._release()
        elif operands[0].startswith("B"):
            self._set_members(operands[0], self.saved[operands[1]], active)
        else:
            self.saved[operands[0]] = self.members[operands[1]].copy()

    def _touch(self, instruction: Instruction, on: Array) -> None:
        place = address(self.lanes, instruction.operands[instruction.name[0] == "L"])
        at = np.broadcast_to(place.bits, on.shape).reshape(-1, WARP)
        known = (on & place.known).reshape(-1, WARP)
        if instruction.name in ("LDS", "STS"):
            self.touched["turns"] += int(turns(at, known, instruction.width).sum())
        else:
            self.touched["lines"] += distinct(at, known, LINE_BYTES)
        if instruction.name == "STG":
            self.touched["sectors"] += distinct(at, known, SECTOR_BYTES)

    def _set_members(self, barrier: str, members: Array, active: Array) -> None:
        """Set a barrier of the warps that are here; other warps keep theirs."""
        here = active.reshape(-1, WARP).any(axis=1).repeat(WARP)
        np.copyto(self.members[barrier], members, where=here)

    def _branch(self, place: int, instruction: Instruction, active: Array, guard: Value) -> None:
        *conditions, _ = instruction.operands
        target = _target(instruction, self.index)
        values = [guard, *map(self.lanes.predicate, conditions)]
        taken, known = np.ones(1, bool), np.ones(1, bool)
        for value in values:
            taken, known = taken & (value.bits != 0), known & value.known
        if instruction.modifiers & STRAY:
            taken = np.zeros(1, bool)
        elif (active & ~known).any():
            self.assumed.add(place)
            shorter = self.longest[target] < self.longest[place + 1]
            taken = np.where(known, taken, shorter)
        if taken.all():
            self._go(target, active)
        elif not taken.any():
            self._go(place + 1, active)
        else:
            self._go(target, active & taken)
            self._go(place + 1, active & ~taken)

    def _exit(self, place: int, active: Array, guard: Value) -> None:
        if (active & ~guard.known).any():
            self.assumed.add(place)
        leaving = active & ((guard.bits != 0) | ~guard.known)
        self.alive = self.alive & ~leaving
        self._go(place + 1, active & ~leaving if leaving.any() else active)
        self._release()

    def _return(self, instruction: Instruction, active: Array) -> None:
        register, base = instruction.operands
        value = self.lanes.read(register)
        if (active & ~value.known).any():
            raise GpupoolError(f"the simulation does not know where to return: {instruction}")
        places = np.broadcast_to(value.bits, active.shape)
        for place in np.unique(places[active]):
            self._go(self.index[int(place) + int(base, 16)], active & (places == place))

    def _release(self) -> None:
        """Let lanes pass a barrier where every member that still runs has come."""
        for place, mask in list(self.waiting.items()):
            members = self.members[self.code[place].operands[0]] & self.alive
            missing = (members & ~mask).reshape(-1, WARP).any(axis=1).repeat(WARP)
            free = mask & ~missing
            if free.any():
                self._go(place + 1, free)
                del self.waiting[place]
                if (mask & missing).any():
                    self.waiting[place] = mask & missing


def _longest(code: Sequence[Instruction], index: dict[int, int]) -> list[int]:
    """Return the most instructions from each one to an end, of loops that are gone through again.

    A call counts as many, and what never ends as the limit.
    """
    follow = [_following(i, instruction, index) for i, instruction in enumerate(code)]
    calls = (_target(one, index) for one in code if one.name == "CALL")
    backwards = _last_ones_first([0, *calls], follow)
    longest = [0] * (len(code) + 1)
    for _ in ("once", "again"):
        for i in backwards:
            length = CALLED if code[i].name == "CALL" else 1
            longest[i] = length + max((longest[other] for other in follow[i]), default=LIMIT)
    return longest


def _target(instruction: Instruction, index: dict[int, int]) -> int:
    return index[int(instruction.operands[-1], 16)]


def _following(i: int, instruction: Instruction, index: dict[int, int]) -> list[int]:
    """Return what may follow: an end is behind all code, and nothing follows a trap."""
    name, behind, always = instruction.name, i + 1, not instruction.guard
    if name in ("EXIT", "RET"):
        return [len(index)] if always else [len(index), behind]
    if name != "BRA" or instruction.modifiers & STRAY:
        return [behind]
    target = _target(instruction, index)
    ways = [target] if always and len(instruction.operands) == 1 else [target, behind]
    return [way for way in ways if way != i]


def _last_ones_first(begins: Sequence[int], follow: Sequence[Sequence[int]]) -> list[int]:
    """Return all that is reached, each behind what follows it, but for the begin of its loop."""
    ordered, reached, found = list[int](), set[int](), list(begins)
    while found:
        i = found.pop()
        if i < 0:
            ordered.append(~i)
        elif i not in reached and i < len(follow):
            reached.add(i)
            found += [~i, *follow[i]]
    return ordered
