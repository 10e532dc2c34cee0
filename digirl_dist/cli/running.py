"""Runs a configuration: refuses what is wrong before torch is imported, then trains or measures."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from digirl_dist.exit_status import end_by_signals_as_by_ctrl_c, interruptions_wait
from digirl_dist.parallel.rank import Rank, launched_rank
from digirl_dist.report.output import shown
from digirl_dist.settings.unread import refuse_others_overrides

if TYPE_CHECKING:
    from digirl_dist.settings.configuration import Source


def run(source: Source, watched: bool = True, last: int | None = None) -> int:
    """Returns the exit status; if ``watched``, workers join and leave as in the files. Raises DigirlDistError.

    The run ends after so many iterations as ``last`` says, or else when it is complete. With ``last``, each update is
    made by this process, whatever the trainer.
    """
    rank = launched_rank(os.environ)
    leads = rank is None or rank.is_first
    end_by_signals_as_by_ctrl_c()
    try:
        return _run(source, rank, watched, last)
    except KeyboardInterrupt:
        if leads:
            raise
        return 130  # rank 0 says it


def _run(source: Source, rank: Rank | None, watched: bool, last: int | None) -> int:
    leads = rank is None or rank.is_first
    with shown("read the configuration", sys.stdout if leads else None) as progress:
        from digirl_dist.assembly import validate
        from digirl_dist.assembly.trainers import on_ranks, starts_ranks

        settings = source.load()
        refuse_others_overrides(source.overrides, ranks=False)
        progress.work_on(settings.save_path)
        if notice := source.notice:
            progress.say(notice)
        if leads:
            validate.refuse_before_start(settings, rank)
        if last is not None or not starts_ranks(settings, rank):
            progress.status.host("load torch and the parts of the run")
            with interruptions_wait():
                from digirl_dist.assembly import run as assembled

            assembled.run(settings, source if watched else None, progress, last)
            return 0
    return on_ranks(settings, source.words)
