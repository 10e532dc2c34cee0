"""``python -m digirl_dist.cli`` is the command line, as ``python -m digirl_dist`` is."""

import sys

from digirl_dist.cli import entry

sys.exit(entry())
