"""Every number has a range and every path a use: found mechanically, so that a new key without one fails here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import cycle
from typing import Annotated, Any, get_args, get_origin

import pytest

from digirl_dist.errors import SettingsError
from digirl_dist.protocol.messages import EpisodeManifest, decode_manifest, encode_manifest
from digirl_dist.rollout.rollout import episode_id
from digirl_dist.settings import Settings, configuration, conversion, key_places
from digirl_dist.settings.algorithms import algorithm_settings
from digirl_dist.settings.hosts import WorkerEntry, split_host, worker_entries, worker_name
from digirl_dist.settings.keys import types_of
from digirl_dist.settings.paths import OnEmulators, PathUse, refuse_bad_paths, uses_of
from digirl_dist.settings.places import HERE
from digirl_dist.tasks import Task, Ticket

pytestmark = pytest.mark.long_file(5)

BAD = (-1, 0, float("nan"), float("inf"), -float("inf"), 1e300, 10**400, True)


def classes() -> Iterator[tuple[str, type]]:
    """Every settings class with its place in the configuration, as ``limits.``."""
    roots: list[tuple[str, type]] = [
        ("", Settings),
        ("algorithm.", algorithm_settings()),
        ("worker_ips[0].", WorkerEntry),
    ]
    roots += [
        (f"{group}={name} {group}.", kind)
        for group, all_ in key_places.options_of_groups().items()
        for name, kind in all_.items()
    ]
    while roots:
        place, kind = roots.pop()
        yield place, kind
        inner = {name: hint for name, hint in types_of(kind).items() if is_dataclass(hint)}
        groups = key_places.options_of_groups() if kind is Settings else {}
        roots += [(f"{place}{name}.", hint) for name, hint in inner.items() if name not in (*groups, "algorithm")]


@pytest.fixture(scope="module")
def composed() -> Settings:
    return configuration.load(HERE, "host", [])


def bounds_of(hint: Any) -> list[Any]:
    """Returns the numbers with ranges in a type."""
    if get_origin(hint) is Annotated and get_args(hint)[0] in (int, float):
        return [hint]
    return [found for each in get_args(hint) for found in bounds_of(each)]


def bare_numbers(hint: Any) -> bool:
    if hint in (int, float):
        return True
    if get_origin(hint) is Annotated and bounds_of(hint) == [hint]:
        return False
    return any(bare_numbers(each) for each in get_args(hint))


CLASSES = list(classes())
NUMBERS = [
    (place, kind, name, bounds)
    for place, kind in CLASSES
    for name, hint in types_of(kind, include_extras=True).items()
    for bounds in bounds_of(hint)
    if get_origin(hint) is not list and "list" not in str(hint) and "dict" not in str(hint)
]


def test_every_number_has_a_range() -> None:
    bare = [
        f"{place}{name}"
        for place, kind in CLASSES
        for name, hint in types_of(kind, include_extras=True).items()
        if bare_numbers(hint) and name != "bsize"
    ]
    assert not bare, "give them a type of settings/ranges.py"
    assert len(NUMBERS) > 150


def needed(kind: type) -> dict[str, Any]:
    return {
        each.name: "http://x" for each in fields(kind) if each.default == "???" and types_of(kind)[each.name] is str
    }


@pytest.mark.parametrize("value", BAD, ids=lambda value: str(value)[:9])
def test_every_number_is_held_against_its_range(value: Any) -> None:
    for place, kind, name, bounds in NUMBERS:
        given = {**needed(kind), name: value}
        if not isinstance(value, bool) and meta_allows(bounds, value) and (place, name) != ("ssh.", "silence_s"):
            conversion.converted(kind, given)
        elif (place, name) != ("ssh.", "silence_s"):
            with pytest.raises(SettingsError, match=rf"{re.escape(name)} must be "):
                conversion.converted(kind, given)


def meta_allows(bounds: Any, value: float) -> bool:
    meta = get_args(bounds)[1]
    low = value > meta.gt if meta.gt is not None else value >= meta.ge
    return bool(low and value <= meta.le)


@pytest.mark.component
def test_every_numeric_key_is_refused_by_name_whatever_its_yaml_says() -> None:
    for place, kind, name, _ in NUMBERS:
        if kind is Settings:  # which is composed of all, see below
            continue
        for given in ("abc", "", [1], {"a": 1}, float("nan"), float("inf"), 10**400, True):
            with pytest.raises(SettingsError) as refusal:
                conversion.merged(kind(), {**needed(kind), name: given}, place)
            said = str(refusal.value)
            assert name in said and "\n" not in said and len(said) < 700, (place, name, given, said)


TYPED = ("nan", "-inf", "1e400", "abc", "[1]", "{a: 1}", "null", "true", "9" * 400, "9" * 5000, "''", "${", "${x}", "=")


@pytest.mark.parametrize(
    ("key", "typed"),
    zip(cycle(["rollout_size", "limits.boot_s", "algorithm.grpo.actor.learning_rate"]), TYPED, strict=False),
    ids=lambda word: word[:9],
)
def test_a_wrong_number_on_the_command_line_is_refused_in_one_line(key: str, typed: str) -> None:
    """With the whole way through Hydra; what each class does with each value is shown above."""
    with pytest.raises(SettingsError) as refusal:
        configuration.load(HERE, "host", [f"{key}={typed}"])
    said = str(refusal.value)
    assert key in said and "\n" not in said and len(said) < 700


def test_every_path_says_what_it_is_for() -> None:
    named = re.compile(r"(^|_)(path|home|dir|folder|file|data|key|encoder)$|_in$")
    bare = [
        f"{place}{name}"
        for place, kind in CLASSES
        for name, hint in types_of(kind, include_extras=True).items()
        if named.search(name) and "str" in str(hint) and not list(uses_of(hint)) and "dict" not in str(hint)
    ]
    assert not bare, "give them a type of settings/paths.py"


def test_every_path_is_refused_by_name_where_it_cannot_be_used(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "below"
    wrong = {
        PathUse.output_folder: [tmp_path / "file", below, "/proc/mine", "", "a\0b", "x" * 300, "\udcff"],
        PathUse.folder: [tmp_path / "missing", tmp_path / "file", "", "a\0b", "x" * 300],
        PathUse.file: [tmp_path / "missing", tmp_path, "", "a\0b", "x" * 5000],
        PathUse.either: [tmp_path / "missing", "", "a\0b", "x" * 300, "~nobody-of-that-name/x"],
        PathUse.elsewhere: ["", "a\0b"],
    }
    looked_at = 0
    for place, kind in CLASSES:
        for name, hint in types_of(kind, include_extras=True).items():
            for use in uses_of(hint):
                plain = use.use if isinstance(use, OnEmulators) else use
                for value in wrong[plain]:
                    given = kind()
                    setattr(given, name, [str(value)] if "list" in str(hint) else str(value))
                    with pytest.raises(SettingsError, match=name):
                        refuse_bad_paths(given, emulators_here=True, prefix=place)
                    looked_at += 1
    assert looked_at > 30
    assert not (tmp_path / "missing").exists()


def test_a_folder_that_can_be_made_is_accepted_and_not_made(tmp_path: Any) -> None:
    settings = configuration.load(HERE, "host", [f"save_path={tmp_path}/a/b"])
    refuse_bad_paths(settings, emulators_here=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("10.0.0.2", (None, "10.0.0.2", None)),
        ("10.0.0.2:2222", (None, "10.0.0.2", 2222)),
        ("ann@gpu-3.example:22", ("ann", "gpu-3.example", 22)),
        ("::1", (None, "::1", None)),
        ("fe80::1%eth0", (None, "fe80::1%eth0", None)),
        ("[::1]", (None, "::1", None)),
        ("[::1]:2222", (None, "::1", 2222)),
    ],
)
def test_hosts_are_read_as_people_write_them(typed: str, meant: tuple[str | None, str, int | None]) -> None:
    assert split_host(typed) == meant


@pytest.mark.parametrize(
    "typed",
    [
        *("", "a:", ":22", "a:b", "a:0", "a:99999", "a:1:2", "[zz]:3", "ssh://a", "a b", "-oX=y", "a/b"),
        *("x:" + "9" * 5000, "a\0b", "\u202ea"),
    ],
    ids=lambda typed: typed[:9],
)
def test_what_is_no_host_is_refused_with_the_forms(composed: Settings, typed: str) -> None:
    settings = replace(composed, worker_ips=[typed])
    with pytest.raises(SettingsError, match=r"worker_ips\[0\].*write host, user@host") as refusal:
        worker_entries(settings)
    assert len(str(refusal.value)) < 500


def test_a_port_in_a_host_names_the_worker_and_may_not_contradict() -> None:
    settings = configuration.load(HERE, "host", [])
    settings.worker_ips = ["127.0.0.1:2222", "127.0.0.1:2223", {"host": "u@h", "port": 5}]
    found = worker_entries(settings)
    assert [worker_name(each) for each in found] == ["127.0.0.1-2222", "127.0.0.1-2223", "h"]
    assert worker_name(WorkerEntry("::1:22")) == "1-22" and worker_name(WorkerEntry("::")) == "worker"
    assert (found[0].host, found[0].port, found[0].username) == ("127.0.0.1", 2222, None)
    settings.worker_ips = [{"host": "h:4", "port": 5}]
    with pytest.raises(SettingsError, match="contradicts port=5"):
        worker_entries(settings)


def test_a_name_too_long_for_the_names_of_episodes_is_refused(composed: Settings) -> None:
    long = "a" * 60 + ".example.org"
    assert [worker_name(each) for each in worker_entries(replace(composed, worker_ips=[long]))] == [long]
    ticket = Ticket(999_999, 99_999, Task("t"), 0, policy_version=0, attempt=999_999, purpose="evaluate")
    name = "a" * 100
    episode = episode_id(ticket, name, 9_999)
    assert decode_manifest(encode_manifest(EpisodeManifest("r", ticket.key, 0, 0, episode, 1, "ab", 0, 1.0, 0.0, {})))
    with pytest.raises(SettingsError, match="has 101 characters, of at most 100; give it a shorter `name`"):
        worker_entries(replace(composed, worker_ips=[{"host": name + "a"}]))
    assert worker_entries(replace(composed, worker_ips=[{"host": name + "a", "name": "short"}]))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"host": "h", "port": "ssh"}, "port"),
        ({"host": "h", "port": 0}, "port must be a whole number from 1 to 65,535 or null, not 0"),
        ({"host": "h", "prot": 22}, "did you mean 'port'"),
        ({"host": "h", "bsize": -1}, "bsize=-1"),
        ({"host": "h", "key": "/nowhere/id"}, "key=/nowhere/id is not there"),
        ({"host": 7}, "must be a host name"),
        ({"host": "h", "site": "a", "site_address": "ann@h"}, "site_address='ann@h' is no machine"),
        ({"host": "h", "site": "a", "site_address": "-oProxyCommand=x"}, "is no machine"),
        ({"host": "h", "site_address": "h"}, "give the worker a site"),
        ({"host": "h", "emulator": 3}, "emulator"),
        ({"host": "h", "username": "a\ud800"}, "is no name of a user"),
        (7, "must be a host name"),
        (None, "must be a host name"),
    ],
)
def test_a_wrong_entry_of_a_worker_is_refused_by_name(composed: Settings, entry: Any, said: str) -> None:
    settings = replace(composed, worker_ips=["fine", entry])
    with pytest.raises(SettingsError, match=rf"worker_ips\[1\].*{re.escape(said)}"):
        worker_entries(settings)
