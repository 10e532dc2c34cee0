"""The cards of data sets and models: README.md files as the Hugging Face hub shows them.

What workers, tasks and users said stands in them as text alone: every sign that Markdown or HTML could take for more is
written as a character reference, which has no meaning but its character (CommonMark, section 2.5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml  # type: ignore[import-untyped]

import digirl_dist
from digirl_dist.export.source import Source
from digirl_dist.plain_text import one_line
from digirl_dist.settings.keys import flat
from digirl_dist.types import Json

_LONGEST = 200
_MOST_TASKS = 200

Tally = dict[str, tuple[int, int]]
"""Episodes and successes of each task."""


def dataset_card(source: Source, tally: Tally, rows: int) -> str:
    """Returns the card of the exported episodes."""
    about = {
        "pretty_name": _plain(source.name),
        "tags": ["digirl_dist", "reinforcement-learning", "gui-agents", "trajectories"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*.parquet"}]}],
    }
    episodes = sum(count for count, _ in tally.values())
    return _card(
        about,
        f"# {inert(source.name)}",
        f"{episodes:,} episodes, {rows:,} steps, collected by "
        f"{inert(source.chosen('agent'))} on {inert(source.chosen('emulator'))}. One row is one step: what was seen "
        "(`text`, `image`, `vector`), the `action` as JSON, its `log_prob` under the policy that acted, and the "
        "`reward`; `final_…` is what was seen after the last step, in that row alone.",
        "## Tasks",
        _tasks(tally),
        *_provenance(source),
        "## Limits",
        "Episodes of a learning policy are biased towards what it did at the time (`policy_version`); `success` is the "
        "word of the environment or of a judge, not of a person.",
    )


def model_card(source: Source, version: int) -> str:
    """Returns the card of an exported policy."""
    about = {
        "library_name": "digirl_dist",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["digirl_dist", "reinforcement-learning", "gui-agents"],
    }
    figures = [line for line in source.figures() if line.get("policy_version") in (version, version - 1)][-1:]
    known = {key: line[key] for line in figures for key in ("success_rate", "reward_mean", "episodes") if key in line}
    measured = ", ".join(f"{inert(key)} {inert(value)}" for key, value in known.items())
    return _card(
        about,
        f"# {inert(source.name)}",
        f"The policy after {version} updates: {inert(source.chosen('agent'))}, trained on "
        f"{inert(source.chosen('emulator'))} by {inert(source.config.get('train_algorithm'))}. "
        f"In the training episodes nearest to it: {measured or 'no figures'}.",
        "## Use",
        "```python\nfrom huggingface_hub import snapshot_download\nfrom digirl_dist import Policy\n\n"
        "policy = Policy.from_folder(snapshot_download(REPOSITORY))\ndecision = policy.act(observation)\n```\n\n"
        "A run begins with it by `start_from=FOLDER`.",
        *_provenance(source),
    )


def inert(value: Json) -> str:
    """Returns a value as text that neither Markdown nor HTML takes for anything else, on one line."""
    return "".join(sign if sign.isalnum() or sign == " " else f"&#{ord(sign)};" for sign in _plain(str(value)))


def _plain(text: str) -> str:
    shown = one_line(text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def _card(about: Mapping[str, Json], *parts: str) -> str:
    front = yaml.safe_dump(dict(about), sort_keys=False, allow_unicode=False)
    return f"---\n{front}---\n\n" + "\n\n".join(parts) + "\n"


def _tasks(tally: Tally) -> str:
    rows = [
        (inert(task), f"{count}", f"{won / count:.2f}") for task, (count, won) in sorted(tally.items())[:_MOST_TASKS]
    ]
    left = len(tally) - len(rows)
    return _table(("task", "episodes", "success"), rows) + (f"\n\nand {left} more." if left > 0 else "")


def _provenance(source: Source) -> list[str]:
    settings = [(inert(key), inert(value)) for key, value in flat(source.settings()) if value is not None]
    unique = {tuple(sorted((key, str(value)) for key, value in each.items())): each for each in source.machines()}
    machines = [", ".join(f"{inert(key)} {inert(value)}" for key, value in each.items()) for each in unique.values()]
    return [
        "## How it was made",
        f"By digirl&#95;dist {inert(digirl_dist.__version__)}, run {inert(source.run_id)}.",
        _table(("setting", "value"), settings),
        "\n".join(f"- {each}" for each in machines[:20]) or "No machine is known.",
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])
