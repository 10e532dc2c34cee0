"""What can be chosen follows from the files there are."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from digirl_dist import settings
from digirl_dist.settings.plugins import ALGORITHM, KINDS, Kind, settings_classes


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_file_holds_one_settings_class_that_can_be_built_and_imported(kind: Kind) -> None:
    for cls in settings_classes(kind).values():
        assert callable(cls.build) and cls.__doc__
        assert getattr(settings, cls.__name__) is cls


def test_a_name_that_no_file_has_is_no_attribute() -> None:
    for name in ("TrackSettings", "nothing", "__path_of_nothing__"):
        with pytest.raises(AttributeError):
            getattr(settings, name)


def test_all_algorithms_have_a_block_that_travels() -> None:
    blocks = settings.AlgorithmSettings()
    assert [type(getattr(blocks, name)) for name in ALGORITHM.names()] == list(settings_classes(ALGORITHM).values())
    assert pickle.loads(pickle.dumps(blocks)) == blocks


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "defines 0 classes that derive from AgentSettings"),
        ("@dataclass\nclass A(AgentSettings):\n    name: str = 'other'\n", "calls it other"),
    ],
)
def test_a_file_that_does_not_say_what_it_is_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    import digirl_dist.agent.plugins

    begins = "from dataclasses import dataclass\nfrom digirl_dist.settings.plugins import AgentSettings\n"
    name = f"odd_{len(text)}"
    (tmp_path / f"{name}.py").write_text(begins + text)
    monkeypatch.setattr(digirl_dist.agent.plugins, "__path__", [str(tmp_path)])
    kind = next(kind for kind in KINDS if kind.name == "agent")
    with pytest.raises(TypeError, match=said):
        kind.settings(name)
