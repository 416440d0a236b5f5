"""``python -m gpupool``: the command."""

import sys

from gpupool.cli import main

sys.exit(main())
