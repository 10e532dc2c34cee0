"""python -m digirl_dist"""

import sys

from digirl_dist.cli import entry

if __name__ == "__main__":
    sys.exit(entry())
