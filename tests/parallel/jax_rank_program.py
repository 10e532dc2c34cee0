"""What the JAX launcher starts in its tests: says how it was started, and ends in a way of its own.

jax_rank_program.py [tell] [--exit=RANK:3] [--deaf] [arguments …]
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

told = {name.removeprefix("JAX_"): value for name, value in os.environ.items() if name.startswith("JAX_")}
sys.stdout.write(json.dumps({**told, "arguments": sys.argv[1:], "pid": os.getpid()}) + "\n")
sys.stdout.flush()
for argument in sys.argv[1:]:
    if argument == f"--exit={told['RANK']}:3":
        time.sleep(0.5)  # the others have said who they are
        sys.exit(3)
    if argument == "--deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[1:2] != ["tell"]:
    time.sleep(60)
