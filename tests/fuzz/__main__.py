"""``script/fuzz [--cases N] [--seed S] [--kinds KIND …] [--case N]``: mutated input must end in our errors, cheaply."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fuzz.campaign import LIMITS, campaign, one_case
from fuzz.targets import TARGETS


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if any case ended in something else than an answer or an error of ours, or was too expensive."""
    parser = argparse.ArgumentParser(prog="script/fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--case", type=int, help="only this one, in this process, with its traceback")
    options = parser.parse_args(arguments)
    if options.case is not None:
        one_case(options.kinds[0], options.seed, options.case)
        return 0
    failed = False
    for kind in options.kinds:
        result = campaign(kind, options.seed, options.cases, LIMITS)
        print(result, flush=True)
        failed = failed or bool(result.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
