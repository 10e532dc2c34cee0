"""The way into a Ray cluster by its address: a named one is used or named, and nothing else is started in its place."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from digirl_dist.child_process import environment
from digirl_dist.errors import ClusterError
from digirl_dist.parallel.loopback import free_port
from digirl_dist.ray_cluster import connect

pytestmark = [pytest.mark.system, pytest.mark.ray]

RIGHT, WRONG = "a" * 64, "b" * 64
PROGRAM = """
import sys
from digirl_dist.errors import ClusterError
from digirl_dist.vec_env import *
address, folder = [word or None for word in sys.argv[1:]]
def make():
    import gymnasium
    if folder: import of_the_user
    return gymnasium.make("CartPole-v1")
config = VecEnvConfig(make, 1, [EpisodeCfg(0)])
where = RayDistributionCfg(1, 0, head_address=address, working_dir=folder, cpu_num_per_proc=0.1)
try: env = VecEnv(config.distribute(where))
except ClusterError as error: sys.exit(f"refused: {error}")
obs, _ = env.reset()
import ray
print(len(obs[0]), ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
env.close()
"""


@dataclass
class Head:
    """A cluster that somebody started with a token."""

    address: str

    def program(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        own = {name: value for name, value in environment().items() if not name.startswith("RAY_")}
        command, pipe = [sys.executable, "-c", PROGRAM, *words], subprocess.PIPE
        return subprocess.Popen(command, env=own | variables, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    port = free_port()
    ray = str(Path(sys.executable).with_name("ray"))
    words = ["start", "--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
    folder = tmp_path_factory.mktemp("r")
    size = ["--object-store-memory=80000000", "--include-dashboard=false", "--disable-usage-stats"]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": RIGHT}
    for attempt in range(5):  # Ray gives its own processes 30 s, which a loaded machine may take longer for
        command = [ray, *words, *size, f"--temp-dir={folder / str(attempt)}"]
        started = subprocess.Popen(command, env=environment() | token, stdout=subprocess.PIPE, text=True)
        assert started.stdout is not None
        try:
            if any("Ray runtime started" in line for line in started.stdout):
                yield Head(f"127.0.0.1:{port}")
                return
        finally:
            started.terminate()
            started.wait(120)
    pytest.fail("ray start failed")


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_the_named_cluster_is_joined_with_its_token_or_named(head: Head, tmp_path: Path) -> None:
    (tmp_path / "of_the_user.py").write_text("")
    mode = {"RAY_AUTH_MODE": "token"}
    joined = head.program(head.address, str(tmp_path), **mode, RAY_AUTH_TOKEN=RIGHT)
    others = {
        "the token in": head.program(head.address, "", **mode, RAY_AUTH_TOKEN=WRONG),
        "RAY_AUTH_MODE=token": head.program("", "", RAY_ADDRESS=head.address),
    }
    out, err = joined.communicate(timeout=300)
    assert out.startswith("4 ") and out.strip().endswith(head.address.rsplit(":", 1)[1]), err
    for remedy, program in others.items():
        out, err = program.communicate(timeout=300)
        [told] = [line for line in err.splitlines() if line.startswith("refused: ")]
        assert not out and head.address in told and remedy in told, told


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_cluster_of_our_own_asks_others_for_its_token() -> None:
    with tempfile.TemporaryDirectory(prefix="r") as folder:  # short, for the sockets in it
        own = Head("").program("", "", RAY_TMPDIR=folder)
        assert own.stdout is not None and own.stderr is not None
        told = own.stdout.readline().split()
        assert told, own.stderr.read()
        stranger = Head("").program(told[1], "", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=WRONG)
        out, err = stranger.communicate(timeout=200)
        own.communicate("", timeout=60)
    assert not out and "refused: the Ray cluster at" in err
    assert own.returncode == 0


@pytest.mark.component
def test_an_address_where_nothing_listens_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests may have left this process in a cluster
    nothing = f"127.0.0.1:{free_port()}"
    for place, reason in {nothing: "refused", "127.0.0.1:http": "'http'", "127.0.0.1:75000": "0-65535"}.items():
        with pytest.raises(ClusterError, match=f"{place}.*{reason}.*ray start --head"):
            connect.connect(place, 60.0, or_start=True)
    monkeypatch.setenv("RAY_ADDRESS", nothing)
    with pytest.raises(ClusterError, match=f"{nothing}.*refused"):
        connect.connect(None, 60.0, or_start=True)


@pytest.mark.component
@pytest.mark.parametrize("address", ["", " ", 6379])
def test_an_address_that_names_no_cluster_starts_none(address: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_started", lambda folder: pytest.fail("a cluster of its own was started"))
    with pytest.raises(ClusterError, match="is no address of a Ray cluster"):
        connect.connect(address, 60.0, or_start=True)


@pytest.mark.component
def test_without_an_address_a_collector_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests may have left this process in a cluster
    with pytest.raises(ClusterError, match="ray start --head.*collector.address=auto"):
        connect.connect(None, 60.0)


@pytest.mark.component
def test_a_program_stays_in_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = SimpleNamespace(gcs_address="10.0.0.2:6379")
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.get_runtime_context", lambda: inside)
    for place in ("10.0.0.2", "10.0.0.2:6379", "auto", "local"):
        connect.connect(place, 60.0).close()
    with pytest.raises(ClusterError, match="in the Ray cluster at 10.0.0.2:6379 already.*10.0.0.3:6379.*shutdown"):
        connect.connect("10.0.0.3", 60.0)
