"""The documentation site is built, strictly, and knows every setting; the examples in its pages run."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import scripts

from digirl_dist.assembly.parts import build_device
from digirl_dist.cli.main import COMMANDS
from digirl_dist.settings import Settings, configuration, key_places
from digirl_dist.settings.algorithms import algorithm_settings
from digirl_dist.settings.keys import keys_of, written
from digirl_dist.settings.places import HERE
from digirl_dist.settings.reference import sections

pytestmark = pytest.mark.long_file(15)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return scripts.script("docs")


@pytest.mark.component
def test_the_site_is_built_without_broken_links_and_has_every_setting(tmp_path: Path) -> None:
    built = subprocess.run([ROOT / "script" / "docs", "--out", tmp_path / "site"], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    page = (tmp_path / "site" / "site" / "reference" / "settings.html").read_text()
    rows = [row for section in sections() for row in section.rows]
    assert [row.key for row in rows if not row.expert and f'id="{row.anchor}"' not in page] == []
    assert {key.name for settings in every_configuration() for key in keys_of(settings)} == {
        row.key for row in rows
    } | {f"{group}.name" for group in key_places.options_of_groups()}


def test_the_page_of_settings_is_up_to_date(script: ModuleType) -> None:
    assert script.SETTINGS.read_text() == script.docs_reference.settings(), "run script/docs --settings"


def test_the_defaults_in_the_reference_are_those_of_the_whole_block() -> None:
    """A block in a block may have other values than its class, as the policy's fit of each algorithm."""
    built = algorithm_settings()()
    rows = [row for section in sections() for row in section.rows if row.key.startswith("algorithm.")]
    assert len(rows) > 50
    for row in rows:
        value = reduce(getattr, row.key.split(".")[1:], built)
        assert row.default in (f"`{written(value)}`", f"`{value}`", "*must be given*"), row.key


def every_configuration() -> list[Settings]:
    """Configurations which together have every option of every group."""
    found = []
    groups = key_places.options_of_groups()
    for number in range(max(map(len, groups.values()))):
        settings = configuration.load(HERE, "host", [])
        for group, options in groups.items():
            setattr(settings, group, list(options.values())[number % len(options)]())
        found.append(settings)
    return found


@pytest.mark.parametrize(
    ("text", "defect"),
    [
        ('<a href="gone.html">', "there is no gone.html"),
        ('<a href="other.html#gone">', "there is no anchor other.html#gone"),
        ('<a href="#gone">', "there is no anchor #gone"),
        ('<img src="gone.png">', "there is no gone.png"),
        ('<script src="https://cdn.example.org/x.js"></script>', "would request https://cdn.example.org/x.js"),
        ('<link rel="stylesheet" href="//fonts.example.org/x">', "would request //fonts.example.org/x"),
        ('<a href="other.html#here">', ""),
        ('<a href="https://example.org/">', ""),
    ],
)
def test_a_broken_link_and_a_request_to_elsewhere_are_found(
    text: str, defect: str, tmp_path: Path, script: ModuleType
) -> None:
    (tmp_path / "page.html").write_text(text)
    (tmp_path / "other.html").write_text('<h2 id="here">')
    found = list(script.check(tmp_path))
    assert found == ([f"page.html{':' if 'there' in defect else ''} {defect}"] if defect else [])


def test_a_folder_that_holds_something_else_is_left_as_it_is(tmp_path: Path, script: ModuleType) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for out in (tmp_path, tmp_path / "thesis.tex", script.ROOT, script.ROOT / "docs"):
        with pytest.raises(SystemExit, match="holds something else, which would be lost: name a new folder"):
            script.empty(out)
    for _ in range(2):
        script.empty(tmp_path / "site")
        (tmp_path / "site" / "page.html").touch()
    script.empty(tmp_path / "site")
    assert not (tmp_path / "site" / "page.html").exists() and (tmp_path / "thesis.tex").exists()


def commands(page: Path) -> Iterator[list[str]]:
    """Yields the words of each command of ours in a page, from its blocks and its text."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```(?:bash|sh|console|)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for line in [*(line for block in blocks for line in block.splitlines()), *re.findall(r"`([^`\n]+)`", prose)]:
        if found := re.search(r"(?:^|\s)(digirl-dist|python run\.py) +([^|>&`]+)", line):
            words = [word for word in shlex.split(found[2], comments=True) if "…" not in word]
            yield words if found[1] == "digirl-dist" else ["run", *words]


PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "dev").glob("*.md")),
]


@pytest.mark.component
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_is_one_that_is_understood(page: Path) -> None:
    for name, *words in commands(page):
        if name in COMMANDS:
            options = COMMANDS[name].parser(name).parse_intermixed_args(words)
            if getattr(options, "config_path", None) in (HERE, "config/multimachine"):
                chosen = [f"emulator={options.emulator}"] if getattr(options, "emulator", None) else []
                given = [each for each in getattr(options, "overrides", ()) if "=" in each]
                configuration.load(options.config_path, getattr(options, "config_name", "host"), [*chosen, *given])
        else:
            assert name in ("--version", "COMMAND", "help"), f"{page.name}: there is no command {name}"


def test_the_tasks_of_the_page_on_tasks_are_those_of_the_phone(tmp_path: Path) -> None:
    (tmp_path / "tasks.yaml").write_text(block_of("tasks.md", "yaml"))
    settings = configuration.load(HERE, "host", [f"task_set={tmp_path / 'tasks.yaml'}"])
    known = {task.id: task for task in build_device(settings, settings.emulator).tasks}
    assert set(known) == {"open-clock-0", "open-maps-0", "wifi"}
    assert known["wifi"].params == {"app": "Settings", "switch": "Wi-Fi", "on": True}


def block_of(page: str, language: str) -> str:
    """Returns the first block of a page in a language."""
    block = re.search(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert block is not None
    return block[1]


def test_the_vector_environment_of_the_page_on_scaling_is_complete() -> None:
    names: dict[str, Any] = {}
    exec(block_of("scaling.md", "python"), names)
    assert names["config"].distribution.head_address == "10.0.0.2" and callable(names["VecEnv"])
