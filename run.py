"""python run.py --config-path config/multimachine --config-name host [key=value …]"""

import sys

from digirl_dist.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
