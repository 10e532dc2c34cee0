"""The same as run.py in the folder above, for `cd script`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from digirl_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
