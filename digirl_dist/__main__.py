"""python -m digirl_dist"""

import sys

from digirl_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
