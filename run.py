"""python run.py --config-path config/multimachine --config-name host [key=value …]"""

import sys

from digirl_dist.cli import entry

if __name__ == "__main__":
    sys.exit(entry())
