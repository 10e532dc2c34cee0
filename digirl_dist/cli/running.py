"""Runs a configuration: refuses what is wrong before torch is imported, then trains or measures."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from digirl_dist.exit_status import end_by_sigterm_as_by_ctrl_c

if TYPE_CHECKING:
    from digirl_dist.settings.configuration import Source


def run(source: Source, watched: bool = True) -> int:
    """Returns the exit status; if ``watched``, workers join and leave as in the files. Raises DigirlDistError."""
    from digirl_dist.assembly import validate
    from digirl_dist.parallel.rank import launched_rank

    settings = source.load()
    if notice := source.notice:
        print(notice, file=sys.stderr)
    end_by_sigterm_as_by_ctrl_c()
    validate.refuse_before_start(settings, launched_rank(os.environ))
    from digirl_dist.assembly import run as assembled

    assembled.run(settings, source if watched else None)
    return 0
