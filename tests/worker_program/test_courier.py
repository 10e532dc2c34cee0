"""The worker's end of the file courier, spoken to directly over pipes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from digirl_dist.storage.digest import digest

pytestmark = pytest.mark.component


@pytest.fixture
def courier(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "digirl_dist.worker_program.courier", "--folder", str(tmp_path / "folder")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process
        process.kill()


def _send(courier: subprocess.Popen[bytes], request: dict[str, Any], data: bytes = b"") -> None:
    assert courier.stdin is not None
    courier.stdin.write(json.dumps(request).encode() + b"\n" + data)
    courier.stdin.flush()


def _answer(courier: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert courier.stdout is not None
    answer: dict[str, Any] = json.loads(courier.stdout.readline())
    return answer


def test_it_answers_in_order(courier: subprocess.Popen[bytes], tmp_path: Path) -> None:
    for name in ("a", "b"):
        _send(courier, {"put": name, "size": 3, "digest": digest(b"xyz")}, b"xyz")
    _send(courier, {"put": "c", "size": 3, "digest": digest(b"other")}, b"xyz")
    _send(courier, {"get": "b", "offset": 1})
    assert [_answer(courier), _answer(courier)] == [{}, {}]
    assert "error" in _answer(courier)
    assert _answer(courier) == {"size": 3}
    assert courier.stdout is not None and courier.stdout.read(2) == b"yz"
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["a", "b"]


def test_a_put_replaces_an_older_file_and_an_older_part(courier: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(exist_ok=True)
    (tmp_path / "folder/f").write_bytes(b"old")
    (tmp_path / "outside").write_bytes(b"keep")
    (tmp_path / "folder/f.part").symlink_to(tmp_path / "outside")
    _send(courier, {"put": "f", "size": 3, "digest": digest(b"new")}, b"new")
    assert _answer(courier) == {}
    assert (tmp_path / "folder/f").read_bytes() == b"new" and (tmp_path / "outside").read_bytes() == b"keep"


def test_it_ends_quietly_with_its_input_and_leaves_no_part(courier: subprocess.Popen[bytes], tmp_path: Path) -> None:
    _send(courier, {"put": "f", "size": 1000, "digest": digest(b"")}, b"only some")
    assert courier.stdin is not None and courier.stderr is not None
    courier.stdin.close()
    assert courier.wait(120) == 0 and courier.stderr.read() == b""
    assert list((tmp_path / "folder").iterdir()) == []


def test_it_ends_with_a_request_that_has_no_end_and_keeps_little_of_it(courier: subprocess.Popen[bytes]) -> None:
    assert courier.stdin is not None and courier.stdout is not None
    _send(courier, {"get": "none", "offset": 0})
    assert "error" in _answer(courier)
    with pytest.raises(BrokenPipeError):
        for _ in range(64):
            courier.stdin.write(bytes(1 << 20))
    assert courier.wait(120) == 0 and courier.stdout.read() == b""


def test_it_starts_without_what_is_heavy() -> None:
    courier = "digirl_dist.worker_program.courier"
    code = f"import sys; before = set(sys.modules); import {courier}; print(*set(sys.modules) - before)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"numpy", "torch", "paramiko", "omegaconf", "asyncio", "argparse"} & set(loaded)


def test_it_starts_at_once(tmp_path: Path) -> None:
    def start(module: list[str]) -> float:
        """Returns the processor time, which other programs on the machine hardly change."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *module], stdin=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    bare = min(start(["-c", "pass"]) for _ in range(5))
    ours = min(start(["-m", "digirl_dist.worker_program.courier", "--folder", str(tmp_path)]) for _ in range(5))
    assert ours - bare < 0.5
