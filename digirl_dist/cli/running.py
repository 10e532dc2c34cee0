"""Runs a configuration: refuses what is wrong before torch is imported, then trains or measures."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from digirl_dist.exit_status import end_by_signals_as_by_ctrl_c, interruptions_wait
from digirl_dist.parallel.rank import launched_rank
from digirl_dist.report.output import shown
from digirl_dist.settings.unread import refuse_others_overrides

if TYPE_CHECKING:
    from digirl_dist.settings.configuration import Source


def run(source: Source, watched: bool = True, last: int | None = None) -> int:
    """Returns the exit status; if ``watched``, workers join and leave as in the files. Raises DigirlDistError.

    The run ends after so many iterations as ``last`` says, or else when it is complete.
    """
    rank = launched_rank(os.environ)
    end_by_signals_as_by_ctrl_c()
    with shown("read the configuration", sys.stdout if rank is None or rank.is_first else None) as progress:
        from digirl_dist.assembly import validate

        settings = source.load()
        refuse_others_overrides(source.overrides, ranks=False)
        progress.work_on(settings.save_path)
        if notice := source.notice:
            progress.say(notice)
        validate.refuse_before_start(settings, rank)
        progress.status.host("load torch and the parts of the run")
        with interruptions_wait():
            from digirl_dist.assembly import run as assembled

        assembled.run(settings, source if watched else None, progress, last)
    return 0
