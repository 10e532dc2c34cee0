"""A cold push to 16 workers behind one uplink of 200 Mbit/s that pass it on to each other, against one worker alone.

The workers are network namespaces on one bridge, whose way to the host is a token bucket (``tc tbf``): needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import torch

from benchmarks.measure import MINIATURE, measure, sized
from benchmarks.stage import Machine, Ours, Stage, change_all, median, rounded, show, sshd, stage
from digirl_dist.fleet.relay import Relays
from digirl_dist.settings import LimitSettings, RehearsalSettings
from digirl_dist.ssh.connection import Address

WORKERS, ROUNDS = sized((16, 4), (3, 1))
WEIGHT = sized((64, 1_000_000), (8, 50_000))  # 256 MB; in miniature 1.6 MB, just enough to be relayed
LIMIT = "200mbit"
IDLE = RehearsalSettings(reset_s=0, step_s=1, steps=1, steps_sigma=0)
_NET = "10.214.0"


def main() -> None:
    if os.getuid() != 0 or shutil.which("tc") is None:
        sys.exit("this figure needs network namespaces: run it as root, with iproute2 installed")
    with stage() as here, _site(here.folder) as addresses:
        with closing(_ours(here, "one", addresses[:1], None)) as one:
            one.warm_up()
            with closing(_ours(here, "all", addresses, Relays(0.0))) as many:
                many.warm_up()
                _push(many, 1)  # the machine's memory takes in all that its 16 workers keep of a policy
                many.fleet.relayed.clear()
                seconds = [(_push(one, version), _push(many, version)) for version in range(2, ROUNDS + 2)]
                failed = [event for event in many.fleet.relayed if event.reason]
                assert not failed and len(many.fleet.relayed) == ROUNDS * (WORKERS - 1), f"not all relayed: {failed}"
        ratios = [together / alone for alone, together in seconds]
        detail: dict[str, object] = {
            "one_s": rounded([alone for alone, _ in seconds]),
            "all_s": rounded([together for _, together in seconds]),
            "workers": WORKERS,
            "megabytes": round(WEIGHT[0] * WEIGHT[1] * 4 / 1e6, 1),
            "note": "all workers share the processors of this machine; a push ends when all of them act with it",
        }
        if not MINIATURE:
            with closing(_ours(here, "without", addresses, None)) as each:
                each.warm_up()
                detail["without_relays_s"] = round(_push(each, 1), 3)
    show("relay", {"vs_one_worker": (median(ratios), "<=1.3")}, detail)


def _ours(here: Stage, name: str, addresses: Sequence[Address], relays: Relays | None) -> Ours:
    machines = [Machine(address, 1, IDLE) for address in addresses]
    return Ours(here.folder / name, machines, LimitSettings(), WEIGHT, relays=relays)


def _push(ours: Ours, version: int) -> float:
    """Seconds for a policy of which no tensor is there yet."""
    return ours.push(ours.checkpoint(version, change_all))[0]


@contextmanager
def _site(folder: Path) -> Iterator[list[Address]]:
    """An sshd in each of many network namespaces, which one bridge joins; ``LIMIT`` holds between them and the host."""
    switch, outer = f"bench-{os.getpid()}-site", f"b{os.getpid() % 10**7}o"
    with ExitStack() as stack:
        stack.callback(subprocess.run, ["ip", "netns", "del", switch], stderr=subprocess.DEVNULL)
        bucket = f"root tbf rate {LIMIT} burst 256kb latency 50ms"
        _ip(
            f"ip netns add {switch}",
            f"ip -n {switch} link add bridge type bridge",
            f"ip -n {switch} link set bridge up",
            f"ip link add {outer} type veth peer name uplink netns {switch}",
            f"ip addr add {_NET}.1/24 dev {outer}",
            f"ip link set {outer} up",
            f"ip -n {switch} link set uplink master bridge up",
            f"tc qdisc add dev {outer} {bucket}",
            f"tc -n {switch} qdisc add dev uplink {bucket}",
        )
        addresses = []
        for number in range(WORKERS):
            name, host = f"bench-{os.getpid()}-{number}", f"{_NET}.{10 + number}"
            stack.callback(subprocess.run, ["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
            _ip(
                f"ip netns add {name}",
                f"ip link add eth0 netns {name} type veth peer name port{number} netns {switch}",
                f"ip -n {name} addr add {host}/24 dev eth0",
                f"ip -n {name} link set eth0 up",
                f"ip -n {name} link set lo up",
                f"ip -n {switch} link set port{number} master bridge up",
            )
            server = sshd(f"n{number}", folder / name, host, ["ip", "netns", "exec", name])
            addresses.append(stack.enter_context(server))
        yield addresses


def _ip(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    measure(main, minutes=30)
