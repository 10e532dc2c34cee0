"""What a user's file holds at its top travels to workers, or is named with a remedy that works."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from digirl_dist.child_process import environment
from digirl_dist.errors import SettingsError
from digirl_dist.user_code.blame import is_users, lacking_here
from digirl_dist.user_code.entry_point import load_entry_point
from digirl_dist.user_code.packing import pack

FAILING = {
    "LOCK": "import threading\nLOCK = threading.Lock()\ndef play():\n    with LOCK: return 1",
    "LIB": "import ctypes\nLIB = ctypes.CDLL('libc.so.6')\ndef play():\n    return LIB.abs(-1)",
    "ABS": "import ctypes\nABS = ctypes.CDLL('libc.so.6').abs\ndef play():\n    return ABS(-1)",
    "KEPT": "import sqlite3\nKEPT = {'base': sqlite3.connect(':memory:')}\ndef play():\n    return KEPT",
    "WORDS": "WORDS = (word for word in 'ab')\ndef play():\n    return next(WORDS)",
    "LINK": "import socket\nLINK = socket.socket()\ndef play():\n    return LINK.fileno()",
}
TRAVELLING = {
    "cached": "import functools\n@functools.lru_cache\ndef price(n): return n / 10\ndef play(): return price(5) * 2",
    "recursive": (
        "import functools\n@functools.lru_cache(maxsize=None)\n"
        "def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\ndef play(): return fib(2)"
    ),
    "cached_method": (
        "import functools\nclass Mine:\n    @functools.cache\n    def price(self): return 1\n"
        "def play(): return Mine().price()"
    ),
    "lazy": "def play():\n    from helper import GAIN\n    return GAIN",
    "lazy_package": "def play():\n    import tools.deep\n    return tools.deep.GAIN",
    "lazy_chain": "def play():\n    import chain\n    return chain.GAIN",
    "in_the_script": "def play():\n    import helper\n    return helper.GAIN\nplay.__module__ = '__main__'",
    "relative": "def play():\n    from tools import relative\n    return relative.GAIN",
}
NEIGHBOURS = {
    "helper.py": "GAIN = 1",
    "chain.py": "import helper\nGAIN = helper.GAIN",
    "tools/__init__.py": "",
    "tools/deep.py": "GAIN = 1",
    "tools/relative.py": "from .deep import GAIN",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "host"
    for name, content in NEIGHBOURS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return folder


def loaded(folder: Path, name: str, content: str) -> Any:
    (folder / f"{name}.py").write_text(content)
    return load_entry_point(f"{name}:play", "emulator.entry_point")


@pytest.mark.parametrize("name", FAILING)
def test_module_state_that_cannot_travel_is_named_with_its_file_and_a_remedy(name: str, here: Path) -> None:
    play = loaded(here, f"holds_{name.lower()}", FAILING[name])
    with pytest.raises(SettingsError) as refusal:
        pack(play)
    words = str(refusal.value)
    assert words.startswith(f"{here}/holds_{name.lower()}.py: its global {name}, with an object of type ")
    assert "\n" not in words and "make it in __init__" in words


@pytest.mark.component
@pytest.mark.parametrize("name", TRAVELLING)
def test_module_state_that_can_travel_does(
    name: str, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process that has none of the files."""
    worker = tmp_path / "worker"
    worker.mkdir()
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=here / f"travels_{name}.py"))
    (worker / "packed").write_bytes(pack(loaded(here, f"travels_{name}", TRAVELLING[name])))
    there = subprocess.run(
        [sys.executable, "-c", "from digirl_dist.user_code.packing import unpack_file; print(unpack_file('packed')())"],
        cwd=worker,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (there.stdout.strip() in ("1", "1.0"), there.stderr) == (True, "")


def test_what_is_written_in_a_notebook_travels(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module is no file."""
    monkeypatch.delattr("__main__.__file__", raising=False)
    play = loaded(here, "typed", "def play():\n    import helper\n    return 7\nplay.__module__ = '__main__'")
    assert b"play" in pack(play)


def test_what_two_threads_pack_at_once_travels(here: Path) -> None:
    began, other, packed = threading.Event(), threading.Event(), list[bytes]()

    class Slow:
        def __reduce__(self) -> Any:
            began.set()
            other.wait(1.0)  # which waits in turn
            return str, ()

    play = loaded(here, "packed_at_once", "def play():\n    return 'its code'")
    first = threading.Thread(target=lambda: packed.append(pack([Slow(), play])))
    first.start()
    assert began.wait(60)
    packed.append(pack(play))
    other.set()
    first.join()
    assert [b"its code" in each for each in packed] == [True, True]


def test_module_state_read_from_a_data_file_gets_a_remedy(here: Path) -> None:
    play = loaded(here, "reads", "import os\ndef play(): open(os.path.join(os.path.dirname(__file__), 'maze.txt'))")
    with pytest.raises(FileNotFoundError) as missing:
        play()
    assert "data files do not go to workers: read them at the top of your module" in lacking_here(missing.value)
    elsewhere = loaded(here, "reads_elsewhere", "def play(): open('/no/such/file')")
    with pytest.raises(FileNotFoundError) as missing:
        elsewhere()
    assert lacking_here(missing.value) == "", "that may lack anywhere"


@pytest.mark.component
def test_what_pip_put_into_a_folder_of_its_own_is_not_the_users(here: Path) -> None:
    """As on clusters, by ``pip install --target`` and PYTHONPATH: installed, though not into site-packages."""
    wheel = here / "gadget-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, content in {
            "gadget/__init__.py": "import gadget.part\nPART = gadget.part",
            "gadget/part.py": "import threading\nLOCK = threading.Lock()\ndef play():\n    with LOCK: return 1",
            "gadget-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: gadget\nVersion: 1.0\n",
            "gadget-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "gadget-1.0.dist-info/RECORD": "gadget/__init__.py,,\ngadget/part.py,,\n",
        }.items():
            packed.writestr(name, content)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*pip, str(here), str(wheel)], check=True, capture_output=True)
    (here / "mine.py").write_text("import gadget\ndef play():\n    return gadget.part.play()")
    assert is_users(str(here / "mine.py")) and not is_users(str(here / "gadget" / "part.py"))
    pack(load_entry_point("mine:play", "emulator.entry_point"))


@pytest.mark.component
@pytest.mark.parametrize(
    ("given", "written", "elsewhere"),
    [
        ("tools/deep.py:GAIN", "tools.deep:GAIN", False),
        ("./helper.py:GAIN", "helper:GAIN", False),
        ("{folder}/host/tools/deep:GAIN", "tools.deep:GAIN", False),
        ("../outside/mine.py:play", "mine:play", True),
        ("../outside/mine:play", "mine:play", True),
        ("{folder}/outside/mine.py:play", "mine:play", True),
        ("v1.2/mine.py:play", "mine:play", True),
    ],
)
def test_a_path_is_answered_by_what_can_be_imported_and_from_where(
    given: str, written: str, elsewhere: bool, here: Path, tmp_path: Path
) -> None:
    given = given.format(folder=tmp_path)
    for folder in (tmp_path / "outside", here / "v1.2"):
        folder.mkdir()
        (folder / "mine.py").write_text("def play(): return 1")
    with pytest.raises(SettingsError) as refused:
        load_entry_point(given, "predicate")
    folder = (here / given).resolve().parent if elsewhere else here
    remedy = f" and run the command in {folder}, or with PYTHONPATH={folder}" if elsewhere else ""
    assert str(refused.value).endswith(f"={given} names a file: write its module, as predicate={written}{remedy}")
    program = f"from digirl_dist.user_code.entry_point import load_entry_point; load_entry_point({written!r}, 'key')"
    path = environment()["PYTHONPATH"]
    for cwd, more in ((folder, ""), (tmp_path, f":{folder}")):
        variables = {**environment(), "PYTHONPATH": f"{path}{more}"}
        subprocess.run([sys.executable, "-c", program], cwd=cwd, env=variables, check=True)


@pytest.mark.parametrize("name", [".helper", "..outside.mine"])
def test_a_name_that_begins_with_a_dot_is_refused_with_what_to_write(name: str, here: Path) -> None:
    said = f"predicate={name}:play: {name!r} is no name of a module: write my_file for a my_file.py in the working"
    with pytest.raises(SettingsError, match=f"^{re.escape(said)}"):
        load_entry_point(f"{name}:play", "predicate")
