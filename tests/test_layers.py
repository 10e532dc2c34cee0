"""The guard of the unit tests: what they must not do fails them with a message that names it."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from layers import COMPONENT, LAYERS, SYSTEM, UNIT, guarded, layer, may_have


def start() -> None:
    subprocess.run(["true"])


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def bind() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))


def ask_for_a_name() -> None:
    socket.getaddrinfo("localhost", 22)


def swallowed() -> None:
    try:
        start()
    except BaseException:
        pass


def in_a_thread() -> None:
    thread = threading.Thread(target=swallowed)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (start, r"started a process: subprocess.Popen \['true'\]"),
        (fork, "started a process: os.fork"),
        (bind, r"opened a socket: socket.bind \('127.0.0.1', 0\)"),
        (ask_for_a_name, "opened a socket: socket.getaddrinfo localhost"),
        (swallowed, "started a process"),
        (in_a_thread, "started a process"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_a_unit_test_must_not_do_is_refused_by_name(act: Callable[[], None], named: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=named + r"[\s\S]*pytest.mark.component"), guarded():
        act()


def test_what_a_library_asks_while_it_is_imported_is_not_the_tests_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asks_on_import.py").write_text("import subprocess; subprocess.run(['true'])")
    monkeypatch.syspath_prepend(tmp_path)
    with guarded():
        importlib.import_module("asks_on_import")


def test_threads_of_earlier_tests_may_go_on() -> None:
    go, done = threading.Event(), threading.Event()

    def wait_and_start() -> None:
        go.wait(30)
        start()
        done.set()

    threading.Thread(target=wait_and_start, daemon=True).start()
    with guarded():
        go.set()
        assert done.wait(30)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import pytest\n", {UNIT}),
        ("@pytest.mark.component\n", {UNIT, COMPONENT}),
        ("pytestmark = pytest.mark.system\n", {SYSTEM}),
        ("pytestmark = [pytest.mark.long, pytest.mark.system]\n@pytest.mark.unit\n", {UNIT, SYSTEM}),
    ],
)
def test_a_module_without_a_test_of_the_layer_is_not_imported(tmp_path: Path, text: str, found: set[str]) -> None:
    (tmp_path / "test_it.py").write_text(text)
    assert {one for one in LAYERS if may_have(tmp_path / "test_it.py", one)} == found


@pytest.mark.component
def test_a_mark_says_the_layer(request: pytest.FixtureRequest) -> None:
    assert layer(request.node) == COMPONENT
    request.node.add_marker(pytest.mark.system, append=False)
    assert layer(request.node) == SYSTEM
    request.node.add_marker(pytest.mark.unit, append=False)
    assert layer(request.node) == UNIT
