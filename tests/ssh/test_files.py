"""Files through the courier, over real servers, with real faults."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import digirl_dist
from digirl_dist.errors import FileRefusedError, LinkLostError, RunFolderError, TrajectoryError, WorkerError
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.channel import FilePart
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.connection import Connection
from digirl_dist.ssh.courier import CourierClient, Get, Put
from digirl_dist.storage.digest import digest

pytestmark = [pytest.mark.component, pytest.mark.long_file(25)]

if TYPE_CHECKING:
    from conftest import Server

_ROOT = Path(digirl_dist.__file__).resolve().parent.parent


def courier_command(folder: Path) -> list[str]:
    start = ["env", f"PYTHONPATH={_ROOT}", sys.executable, "-m", "digirl_dist.worker_program.courier"]
    return [*start, "--folder", str(folder)]


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The worker's folder."""
    return tmp_path / "there"


@pytest.fixture
def courier(link: Connection, there: Path, limits: SshSettings) -> Iterator[CourierClient]:
    with CourierClient(link.open(courier_command(there)), limits) as courier:
        yield courier


def _put(courier: CourierClient, **files: bytes) -> int:
    return courier.put_many(Put(name, data, digest(data)) for name, data in files.items())


def get(courier: CourierClient, remote: str, local: Path, digest: str, size: int) -> None:
    """Fetches one file. Raises what is wrong with it."""
    [(_, problem)] = courier.get_many([Get(remote, local, digest, size)])
    if problem is not None:
        raise problem


def test_files_of_all_sizes_arrive_and_come_back(courier: CourierClient, there: Path, tmp_path: Path) -> None:
    sizes = [0, 1, 32_703, 32_704, 32_705, 1 << 20, 3_000_001]
    files = {f"f{size}": os.urandom(size) for size in sizes}
    assert _put(courier, **files) == sum(sizes)
    for name, data in files.items():
        assert (there / name).read_bytes() == data
        get(courier, name, tmp_path / name, digest(data), len(data))
        assert (tmp_path / name).read_bytes() == data
    assert not list(tmp_path.glob("**/*.part"))


def test_parts_of_a_file_arrive_in_new_folders(courier: CourierClient, there: Path, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "local").write_bytes(data)
    with open(tmp_path / "local", "rb") as file:
        for offset, size in ((0, 1), (7, 70_000), (1_000_000, 2_000_000)):
            part = data[offset : offset + size]
            courier.put_many(
                [Put("small", b"x", digest(b"x")), Put("a/b/part", FilePart(file, offset, size), digest(part))]
            )
            assert (there / "a/b/part").read_bytes() == part


def test_a_file_that_becomes_shorter_ends_the_courier(courier: CourierClient, there: Path, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(bytes(1_000_000))
    shorter = pytest.raises(WorkerError, match="the local file for part became shorter while it was sent")
    with open(tmp_path / "local", "rb") as file, shorter:
        courier.put_many([Put("part", FilePart(file, 0, 1_000_001), digest(b""))])
    with pytest.raises(WorkerError):
        _put(courier, more=b"x")
    assert not (there / "part").exists()


def test_files_are_asked_for_ahead_and_one_that_is_lost_costs_no_other(courier: CourierClient, tmp_path: Path) -> None:
    files = {f"f{n}": os.urandom(300_000) for n in range(20)}
    _put(courier, **files)
    items = [Get(name, tmp_path / name, digest(data), len(data)) for name, data in files.items()]
    items[3:3] = [Get("missing", tmp_path / "missing", digest(b""), 0)]
    items[9:9] = [Get("f0", tmp_path / "altered", digest(b"other"), 300_000)]
    (tmp_path / "f5.part").write_bytes(b"?" * 1000)
    problems = {item.local.name: problem for item, problem in courier.get_many(items)}
    assert list(problems)[-1] == "f5"  # whose rest was rubbish: it came once more
    lost = {name: type(problem) for name, problem in problems.items() if problem}
    assert lost == {"missing": FileRefusedError, "altered": TrajectoryError}
    assert all((tmp_path / name).read_bytes() == data for name, data in files.items())
    _put(courier, more=b"x")


def test_thousands_of_small_files_need_no_round_trip_each(courier: CourierClient, there: Path) -> None:
    files = {f"t{n}": b"%d" % n for n in range(3000)}
    assert _put(courier, **files) == sum(map(len, files.values()))
    assert len(list(there.iterdir())) == 3000


def test_any_buffer_can_be_put(courier: CourierClient, there: Path) -> None:
    numbers = memoryview(bytes(range(240))).cast("d")
    courier.put_many([Put("numbers", numbers, digest(numbers))])
    assert (there / "numbers").read_bytes() == bytes(range(240))


def test_twenty_couriers_put_at_once(server: Server, limits: SshSettings, tmp_path: Path) -> None:
    with (
        connect(server.address, limits) as one,
        connect(server.address, limits) as two,
        connect(server.address, limits) as three,
    ):
        couriers = [
            CourierClient(link.open(courier_command(tmp_path / f"there{n}")), SshSettings())
            for n, link in enumerate([one, two, three] * 7)
        ]
        data = os.urandom(1_000_000)
        threads = [threading.Thread(target=_put, args=[courier], kwargs={"f": data}) for courier in couriers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert all((tmp_path / f"there{n}/f").read_bytes() == data for n in range(21))


def test_a_put_with_a_wrong_digest_is_refused_and_the_stream_goes_on(courier: CourierClient, there: Path) -> None:
    data = os.urandom(2_000_000)
    with pytest.raises(WorkerError, match="cannot write bad: the bytes that came have the digest"):
        courier.put_many([Put("good", data, digest(data)), Put("bad", data, digest(b"other"))])
    assert [path.name for path in there.iterdir()] == ["good"]
    _put(courier, after=data)
    assert (there / "after").read_bytes() == data


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "a/../../escaped", "link/escaped", "a//b", "", "."])
def test_a_path_that_leaves_the_folder_is_refused(
    courier: CourierClient, there: Path, tmp_path: Path, name: str
) -> None:
    _put(courier, first=b"x")
    (there / "link").symlink_to(tmp_path)
    for attempt in (
        lambda: courier.put_many([Put(name, b"x" * 100_000, digest(b"x" * 100_000))]),
        lambda: get(courier, name, tmp_path / "got", digest(b"x"), 1),
    ):
        with pytest.raises(WorkerError, match="leads out of|is not a plain relative path"):
            attempt()
    assert not (tmp_path / "escaped").exists()
    _put(courier, last=b"x")


def test_a_link_that_points_outside_is_not_read(courier: CourierClient, there: Path, tmp_path: Path) -> None:
    _put(courier, first=b"x")
    (tmp_path / "secret").write_bytes(b"secret")
    (there / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(WorkerError, match="leads out of"):
        get(courier, "link", tmp_path / "got", digest(b"secret"), 6)


def test_getting_a_missing_file_names_it_and_the_courier_goes_on(courier: CourierClient, tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="worker w1: cannot read nothing: No such file or directory"):
        get(courier, "nothing", tmp_path / "got", digest(b""), 0)
    _put(courier, something=b"x")
    get(courier, "something", tmp_path / "got", digest(b"x"), 1)


@pytest.mark.parametrize("altered", [b"altered!", b"longer than announced", b"short"])
def test_a_file_that_is_not_what_was_announced_is_refused(
    courier: CourierClient, there: Path, tmp_path: Path, altered: bytes
) -> None:
    _put(courier, episode=altered)
    with pytest.raises(TrajectoryError, match="worker w1: episode is not the file that was announced"):
        get(courier, "episode", tmp_path / "episode", digest(b"original"), 8)
    assert [path.name for path in tmp_path.glob("episode*")] == []


@pytest.mark.parametrize("rest", ["beginning", "rubbish", "whole", "longer"])
def test_what_an_earlier_attempt_left_is_continued_or_thrown_away(
    courier: CourierClient, tmp_path: Path, rest: str
) -> None:
    data = os.urandom(3_000_000)
    _put(courier, episode=data)
    left = {"beginning": data[:1_000_000], "rubbish": b"?" * 1_000_000, "whole": data, "longer": data + b"!"}[rest]
    (tmp_path / "episode.part").write_bytes(left)
    get(courier, "episode", tmp_path / "episode", digest(data), len(data))
    assert (tmp_path / "episode").read_bytes() == data


def test_a_full_disk_is_named_and_leaves_nothing(link: Connection, limits: SshSettings, small_disk: Path) -> None:
    with CourierClient(link.open(courier_command(small_disk)), limits) as courier:
        _put(courier, fits=bytes(1_000_000))
        with pytest.raises(
            WorkerError, match="cannot write large: No space left on device -> delete files there, or set"
        ):
            _put(courier, large=bytes(5_000_000))
        assert [path.name for path in small_disk.iterdir()] == ["fits"]
        _put(courier, small=bytes(1_000_000))


def test_a_courier_that_cannot_start_says_why(link: Connection, limits: SshSettings) -> None:
    courier = CourierClient(link.open(["no-such-python", "-m", "digirl_dist.worker_program.courier"]), limits)
    with pytest.raises(WorkerError, match="ended with status 127: .*no-such-python.*not found"):
        _put(courier, file=bytes(10_000_000))


def test_a_full_disk_on_this_side_is_told_from_the_workers(courier: CourierClient, small_disk: Path) -> None:
    data = os.urandom(5_000_000)
    _put(courier, episode=data)
    with pytest.raises(RunFolderError, match="episode.part on this machine: No space left on device"):
        get(courier, "episode", small_disk / "episode", digest(data), len(data))
    with pytest.raises(WorkerError):
        _put(courier, more=b"x")


def test_an_error_of_the_source_ends_the_courier_instead_of_mixing_files_up(courier: CourierClient) -> None:
    def broken() -> Iterator[Put]:
        yield Put("one", b"x", digest(b"x"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        courier.put_many(broken())
    with pytest.raises(WorkerError):
        _put(courier, more=b"x")


def test_a_server_killed_in_the_middle_of_a_put_leaves_no_file(
    server: Server, limits: SshSettings, there: Path
) -> None:
    with connect(server.address, limits) as link, CourierClient(link.open(courier_command(there)), limits) as courier:
        _put(courier, first=b"x")
        with pytest.raises(LinkLostError):
            threading.Timer(0.2, server.kill).start()
            courier.put_many([Put("big", bytes(1_000_000_000), "0" * 32)])
    assert not (there / "big").exists()


def test_a_server_killed_in_the_middle_of_a_get_leaves_no_file(
    server: Server, limits: SshSettings, there: Path, tmp_path: Path
) -> None:
    there.mkdir()
    with open(there / "big", "wb") as file:
        file.truncate(2_000_000_000)
    with connect(server.address, limits) as link, CourierClient(link.open(courier_command(there)), limits) as courier:
        threading.Thread(target=_kill_once_there, args=[tmp_path / "big.part", server], daemon=True).start()
        with pytest.raises(LinkLostError):
            get(courier, "big", tmp_path / "big", "0" * 32, 2_000_000_000)
    assert not (tmp_path / "big").exists()
    assert (tmp_path / "big.part").stat().st_size < 2_000_000_000


def _kill_once_there(path: Path, server: Server) -> None:
    while not path.exists() or not path.stat().st_size:
        time.sleep(0.01)
    server.kill()
