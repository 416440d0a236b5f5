"""The command: ``python -m bench`` or ``gpupool bench``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpupool.device import gpu_available
from gpupool.errors import GpupoolError
from gpupool.files import writing
from gpupool.terminal import add_debug, flush, guarded, progress, say

from . import cold, compare, cpu, gpu, host, plot, readme, record, static, table
from .cases import CASES, Case, load, select
from .device import Cuda, Device

DESCRIPTION = "Time every case beside a copy and its peers on a GPU, or do what an option says."

EXIT_WRONG, EXIT_ERROR, EXIT_WORSE = 1, 2, 3


@dataclass(frozen=True)
class Mode:
    """What a run measures, how its rows are shown, and what else the result should know."""

    name: str
    verb: str
    head: Sequence[str]
    cells: Callable[[dict[str, Any]], list[str]]
    summary: Callable[[Sequence[dict[str, Any]]], str]
    measure: Callable[[Case], dict[str, Any]]
    facts: Callable[[], dict[str, Any]] = dict


STATIC = Mode(
    "static", "counting", static.HEAD, static.cells, static.summary, static.analyse, static.facts
)
COLD = Mode("cold", "compiling", cold.HEAD, cold.cells, cold.summary, cold.measure, static.facts)
CPU = Mode("cpu", "timing", cpu.HEAD, cpu.cells, cpu.summary, cpu.measure, cpu.facts)


def on_gpu(device: Device, peers: str | None) -> Mode:
    """Return the mode that times on a device, beside the peers asked for, or all libraries."""
    known = {peer.name: peer for peer in (*gpu.PEERS, *gpu.WAYS)}
    asked = [peer.name for peer in gpu.PEERS] if peers is None else words(peers)
    if unknown := [name for name in asked if name not in known]:
        raise GpupoolError(f"--peers: {unknown[0]!r} is none of {', '.join(known)}")
    chosen = [known[name] for name in asked]
    return Mode(
        "gpu",
        "timing",
        gpu.head(asked),
        partial(gpu.cells, names=asked),
        gpu.summary,
        partial(gpu.measure, device=device, chosen=chosen),
        lambda: {"device": device.facts()},
    )


def checks(device: Device) -> Mode:
    """Return the mode that only compares with the oracle."""
    return Mode(
        "check",
        "checking",
        gpu.CHECK_HEAD,
        gpu.check_cells,
        gpu.summary,
        partial(gpu.check, device=device),
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options, and the status of an error: not that of a wrong result."""
    parser.set_defaults(failed=EXIT_ERROR)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--static", action="store_true", help="count instructions; needs no GPU")
    mode.add_argument("--cold", action="store_true", help="time the compiler; needs no GPU")
    mode.add_argument("--cpu", action="store_true", help="time the oracle beside its peers")
    mode.add_argument("--check", action="store_true", help="compare with the oracle on a GPU")
    mode.add_argument("--host", action="store_true", help="time the host's work; needs no GPU")
    mode.add_argument("--readme", metavar="FILE.md", type=Path, help="write its marked section")
    parser.add_argument("--cases", metavar="FILE.json", type=Path, help="instead of the list")
    parser.add_argument("--only", metavar="ID,ID..", default="", help="the cases of these names")
    parser.add_argument("--op", metavar="OP", help="the cases of one operator")
    parser.add_argument("--dtype", metavar="DTYPE", help="the cases of one dtype")
    parser.add_argument(
        "--peers",
        metavar="NAME,NAME..",
        help=f"on a GPU ({','.join(peer.name for peer in gpu.PEERS)}); empty for none; also "
        f"gpupool's kernels ({','.join(peer.name for peer in gpu.WAYS)})",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all that is known")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write the table")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the table")
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help="draw roofline and bars")
    parser.add_argument(
        "--compare",
        metavar="OLD.json",
        type=Path,
        help=f"exit with status {EXIT_WORSE} where a case became worse",
    )


def chosen(args: argparse.Namespace) -> tuple[Case, ...]:
    """Return the cases that the options leave."""
    if args.only and not words(args.only):
        raise GpupoolError(f"--only {args.only!r} names no case")
    cases = load(args.cases) if args.cases else CASES
    return select(cases, words(args.only), args.op, args.dtype)


def words(text: str) -> list[str]:
    """Split at commas; nothing gives nothing."""
    return [word for word in text.split(",") if word]


def run(args: argparse.Namespace, device: Callable[[], Device] = Cuda) -> int:
    """Do what the options ask; ``device`` is asked for only to time on it."""
    if args.readme:
        refuse(args, ("json", *RESULT), "--readme, which measures nothing")
        readme.update(args.readme)
        return 0
    if args.host:
        refuse(args, RESULT, "--host, which times a call of its own")
        return time_host(args, device)
    cases = list(chosen(args))
    old = record.read(args.compare) if args.compare else None
    if args.static:
        mode = STATIC
    elif args.cold:
        mode = COLD
    elif args.cpu:
        mode = CPU
        cpu.pin()
        cases = cpu.twins(cases)
    elif args.check:
        mode = checks(device())
    else:
        mode = on_gpu(device(), args.peers)
    preflight(args, mode, old)
    result = measured(mode, cases, args.json)
    show(mode, result, args)
    if any(row.get("wrong") or row.get("doubt") for row in result["rows"]):
        return EXIT_WRONG
    return judge(old, result) if old else 0


RESULT = ("cases", "only", "op", "dtype", "peers", "csv", "markdown", "plot", "compare")
"""Options that say which cases are measured and what becomes of the result."""


def refuse(args: argparse.Namespace, names: Sequence[str], what: str) -> None:
    """Refuse options that something else has no use for."""
    if given := [name for name in names if getattr(args, name)]:
        raise GpupoolError(f"--{given[0]} is not for {what}")


def preflight(args: argparse.Namespace, mode: Mode, old: dict[str, Any] | None) -> None:
    """Refuse what the result could not become or hold, before it takes its time."""
    if mode.name != "gpu":
        refuse(args, ("peers",), f"a {mode.name} run, which times none of them")
    if args.plot:
        plot.check(mode.name, args.plot)
    if old:
        compare.check(old, mode.name)
    for file in (args.json, args.csv, args.markdown, args.plot):
        if file and not (folder := file.absolute().parent).is_dir():
            raise GpupoolError(f"{file}: there is no folder {folder}")


def measured(mode: Mode, cases: Sequence[Case], file: Path | None) -> dict[str, Any]:
    """Measure case after case; the file holds at any time what is known until then."""
    result = record.record(mode.name, (), **mode.facts())
    for case in progress(cases, mode.verb):
        try:
            result["rows"].append(mode.measure(case))
        except GpupoolError as error:
            raise GpupoolError(f"{case.id}: {error}") from error
        if file:
            record.write(result, file)
    return result


def show(mode: Mode, result: dict[str, Any], args: argparse.Namespace) -> None:
    """Print the table, and write it in every form asked for."""
    lines = [mode.cells(row) for row in result["rows"]]
    print(table.aligned(mode.head, lines), flush=True)
    say(mode.summary(result["rows"]))
    if args.csv:
        record.write_text(record.as_csv(mode.head, lines), args.csv)
    if args.markdown:
        record.write_text(table.markdown(mode.head, lines) + "\n", args.markdown)
    if args.plot:
        with writing(args.plot):
            plot.save(result, args.plot)


def time_host(args: argparse.Namespace, device: Callable[[], Device]) -> int:
    """Print the host's microseconds for one call; without a GPU those before its launch."""
    there = device is not Cuda or gpu_available()
    used = device() if there else None
    found = host.on_gpu(used) if used else host.without_launch()
    rows = [[name, f"{us:.2f}" if isinstance(us, float) else us] for name, us in found.items()]
    print(table.aligned(("one call", "us of the host"), rows), flush=True)
    if args.json:
        rows_of = [{"id": name, "us": us} for name, us in found.items()]
        record.write(
            record.record("host", rows_of, device=used.facts() if used else None), args.json
        )
    return 0


def judge(old: dict[str, Any], new: dict[str, Any]) -> int:
    """Print each case's ratio to an older result; EXIT_WORSE where one is beyond the noise."""
    changes = compare.compare(old, new)
    print(table.aligned(compare.HEAD, [change.cells() for change in changes]))
    worse = [change.id for change in changes if change.verdict == "worse"]
    if worse:
        say(f"worse than {old['date']} ({old['commit']}): {', '.join(worse)}", "red")
    return EXIT_WORSE if worse else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser("python -m bench", description=DESCRIPTION, allow_abbrev=False)
    arguments(parser)
    add_debug(parser)
    try:
        return guarded(run, parser.parse_args(argv))
    finally:
        flush()


if __name__ == "__main__":
    sys.exit(main())
