"""The command: ``python -m bench`` or ``gpupool bench``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gpupool.errors import GpupoolError
from gpupool.terminal import complain, progress, say

from . import static, table
from .cases import CASES, Case, load, select


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--static", action="store_true", help="count instructions; needs no GPU")
    parser.add_argument("--cases", metavar="FILE.json", type=Path, help="instead of the list")
    parser.add_argument("--only", metavar="ID,ID..", default="", help="the cases of these names")
    parser.add_argument("--op", metavar="OP", help="the cases of one operator")
    parser.add_argument("--dtype", metavar="DTYPE", help="the cases of one dtype")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write everything that is known")


def chosen(args: argparse.Namespace) -> tuple[Case, ...]:
    """Return the cases that the options leave."""
    cases = load(args.cases) if args.cases else CASES
    return select(cases, [name for name in args.only.split(",") if name], args.op, args.dtype)


def run(args: argparse.Namespace) -> int:
    """Run one mode over the chosen cases, print its table, write what is asked for."""
    rows = [static.analyse(case) for case in progress(chosen(args), "counting")]
    print(table.aligned(static.HEAD, [static.cells(row) for row in rows]))
    say(static.summary(rows))
    if args.json:
        args.json.write_text(json.dumps({"mode": "static", "rows": rows}, indent=1) + "\n")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser("python -m bench", description=__doc__, allow_abbrev=False)
    arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except (GpupoolError, OSError) as error:
        complain(error, debug=False)
        return 2


if __name__ == "__main__":
    sys.exit(main())
