"""torchrun --nproc_per_node=N -m digirl_dist.train --config-name ranks --distributed [key=value …]"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from digirl_dist.capacity import let_waiting_threads_sleep
from digirl_dist.errors import SettingsError
from digirl_dist.exit_status import RESUMES, Parser, end_without_a_search_for_garbage, interruptions_wait
from digirl_dist.parallel.failure import telling
from digirl_dist.parallel.rank import Rank, own_rank
from digirl_dist.settings import Settings, configuration
from digirl_dist.settings.unread import refuse_others_overrides


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 failed, 2 wrong configuration or launch, 130 interrupted."""
    parser = Parser(prog="digirl_dist.train", description="train with emulators on every rank")
    parser.add_argument("--config-path", default="config/multimachine", help="folder of the YAML files")
    parser.add_argument("--config-name", default="ranks", help="which of them, without .yaml")
    parser.add_argument("--distributed", action="store_true", help="be one of the ranks that torchrun started")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the configuration")
    options = parser.parse_intermixed_args(argv)
    let_waiting_threads_sleep()
    end_without_a_search_for_garbage()
    rank = Rank()
    try:
        refuse_others_overrides(options.overrides, ranks=True)
        settings = configuration.load(options.config_path, options.config_name, options.overrides)
        rank = own_rank(os.environ)
        return _trained(settings, rank, options.distributed)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if rank.is_first:
            print(f"interrupted; {RESUMES}", file=sys.stderr)
        return 130


def _trained(settings: Settings, rank: Rank, distributed: bool) -> int:
    """Returns the exit status. Raises SettingsError."""
    with interruptions_wait():
        from digirl_dist.train.launch import train

    try:
        with telling(rank):
            train(settings, distributed)
    except SettingsError:
        raise
    except Exception:
        return 1  # told already, with rank and traceback
    return 0


if __name__ == "__main__":
    sys.exit(main())
