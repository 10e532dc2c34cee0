"""Pushing a checkpoint to four workers: all of it, what changed of it, nothing, and over links of limited width.

The limited links are network namespaces with a token bucket (``tc tbf``), for which it must run as root.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psutil
import torch

from benchmarks.baselines import shell
from benchmarks.measure import measure, sized, waiting_for
from benchmarks.stage import Machine, Ours, Stage, Tiny, Values, change_all, median, rounded, show, sshd, stage
from digirl_dist.settings import LimitSettings, PushDtype, RehearsalSettings
from digirl_dist.ssh.connection import Address

WORKERS, PAIRS, LIMITED_PAIRS = sized((4, 5, 3), (1, 1, 1))
WEIGHT = sized((64, 1_000_000), (64, 1000))  # 64 tensors of 4 MB
LIMITED_WEIGHT = sized((16, 1_000_000), (16, 1000))
LIMIT = "200mbit"
CHANGED = 3  # of 64 tensors
_PIDFD_GETFD = 438
"""The number of the system call, on every architecture."""
IDLE = RehearsalSettings(reset_s=0, step_s=0, steps=1, steps_sigma=0)


def main() -> None:
    with stage() as here:
        values, detail = _full_and_partial(here)
    if os.getuid() == 0 and shutil.which("tc"):
        with stage() as here:
            ratios, delta, limited = _limited(here)
            values["limited_vs_scp_serial"] = (median(ratios), ">=3.5")
            values["delta_bytes_ratio"] = (delta, "<=0.12")
            detail.update(limited)
    else:
        detail["limited"] = "not measured, nor are deltas, which are sent on slow links: needs root and iproute2"
    show("push", values, detail)


def _full_and_partial(here: Stage) -> tuple[Values, dict[str, object]]:
    addresses = here.serve(WORKERS)
    ours = here.ours("ours", [Machine(address, 1, IDLE) for address in addresses], LimitSettings(), WEIGHT)
    ours.warm_up()
    version, pushes, copies, ratios = 1, [], [], []
    for _ in range(PAIRS):
        checkpoint = ours.checkpoint(version, change_all)
        copies.append(_scp_parallel(checkpoint.folder / "policy.safetensors", addresses, here.folder))
        pushes.append(ours.push(checkpoint)[0])
        ratios.append(copies[-1] / pushes[-1])
        version += 1
    unchanged = [_unchanged(ours, version + k) for k in range(5)]
    changed = [_changed(ours, version + 5 + k) for k in range(3)]
    values: Values = {
        "vs_scp_parallel": (median(ratios), ">=1.5"),
        "unchanged_s": (median([seconds for seconds, _ in unchanged]), "<=0.2"),
        "unchanged_bytes": (max(sent for _, sent in unchanged), "<=65536"),
        "changed_5pct_bytes_ratio": (median([ratio for _, ratio in changed]), "<=1.1"),
    }
    detail: dict[str, object] = {
        "push_s": rounded(pushes),
        "scp_parallel_s": rounded(copies),
        "pairs": rounded(ratios),
        "unchanged_s": rounded([seconds for seconds, _ in unchanged]),
        "changed_5pct_s": rounded([seconds for seconds, _ in changed]),
        "note": "a push ends when all workers act with it: sent, verified, loaded; bytes are those of all four links",
    }
    return values, detail


def _limited(here: Stage) -> tuple[list[float], float, dict[str, object]]:
    with _narrow_links(here.folder) as addresses:
        pushes, copies = _limited_copies(here, addresses)
        delta, detail = _deltas(here, addresses)
    detail.update(limited_push_s=rounded(pushes), limited_scp_serial_s=rounded(copies))
    return [copy / push for copy, push in zip(copies, pushes, strict=True)], delta, detail


def _limited_copies(here: Stage, addresses: list[Address]) -> tuple[list[float], list[float]]:
    """Seconds for a whole policy: ours, and one copy after the other."""
    machines = [Machine(address, 1, IDLE) for address in addresses]
    with closing(Ours(here.folder / "ours", machines, LimitSettings(), LIMITED_WEIGHT)) as ours:
        ours.warm_up()
        pushes, copies = [], []
        for version in range(1, LIMITED_PAIRS + 1):
            checkpoint = ours.checkpoint(version, change_all)
            started = time.monotonic()
            for address in addresses:
                with waiting_for(f"scp to {address.name}"):
                    shell.send(address, checkpoint.folder / "policy.safetensors", here.folder / f"copy-{address.name}")
            copies.append(time.monotonic() - started)
            pushes.append(ours.push(checkpoint)[0])
    return pushes, copies


def _deltas(here: Stage, addresses: list[Address]) -> tuple[float, dict[str, object]]:
    """Bytes of a policy in bfloat16 after one step of Adam, in relation to all of its bytes."""
    machines = [Machine(address, 1, IDLE) for address in addresses]
    with closing(Ours(here.folder / "bfloat16", machines, LimitSettings(), LIMITED_WEIGHT, PushDtype.bfloat16)) as ours:
        ours.warm_up()
        whole_s, _ = ours.push(ours.checkpoint(1, _as_if_trained))
        seconds, sent = [], []
        for version in range(2, 5):
            checkpoint = ours.checkpoint(version, _step_of_adam)
            before = _bytes_on_wire(ours)
            seconds.append(ours.push(checkpoint)[0])
            sent.append(_bytes_on_wire(ours) - before)
    whole = LIMITED_WEIGHT[0] * LIMITED_WEIGHT[1] * 2 * WORKERS
    told: dict[str, object] = {"bfloat16_s": round(whole_s, 3), "delta_s": rounded(seconds), "delta_bytes": sent}
    return median(sent) / whole, told


def _as_if_trained(policy: Tiny) -> None:
    """Weights of the size that a transformer has."""
    for tensor in policy.ballast:
        tensor.normal_(0, 0.02)


def _step_of_adam(policy: Tiny) -> None:
    """The first step moves every weight by the learning rate."""
    for tensor in policy.ballast:
        tensor.grad = torch.randn_like(tensor)
    torch.optim.Adam(policy.ballast.parameters(), lr=1e-5).step()


def _change_some(policy: Tiny) -> None:
    for tensor in list(policy.ballast)[:CHANGED]:
        tensor.normal_()


def _unchanged(ours: Ours, version: int) -> tuple[float, int]:
    """Seconds, and bytes on all connections in both directions, for a new version with the very same tensors."""
    checkpoint = ours.checkpoint(version)
    ours.push(checkpoint)
    again = type(checkpoint)(checkpoint.folder, version + 1000, checkpoint.tensors)
    before = _bytes_on_wire(ours)
    seconds, _ = ours.push(again)
    return seconds, _bytes_on_wire(ours) - before


def _changed(ours: Ours, version: int) -> tuple[float, float]:
    """Seconds, and bytes in relation to those of the tensors that changed."""
    checkpoint = ours.checkpoint(version + 2000, _change_some)
    before = _bytes_on_wire(ours)
    seconds, _ = ours.push(checkpoint)
    changed = CHANGED * WEIGHT[1] * 4 * WORKERS
    return seconds, (_bytes_on_wire(ours) - before) / changed


def _bytes_on_wire(ours: Ours) -> int:
    """Sent and received on the connections to the workers, as the kernel counts them (tcp_info)."""
    ports = {machine.address.port for machine in ours.machines}
    total = 0
    for process in [psutil.Process(), *psutil.Process().children()]:  # paramiko's are ours, those of ssh its own
        for connection in process.net_connections("tcp"):
            if connection.raddr and connection.raddr.port in ports:
                with socket.socket(fileno=_copy_of(process.pid, connection.fd)) as copy:
                    info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
                total += struct.unpack_from("Q", info, 128)[0] + struct.unpack_from("Q", info, 200)[0]
    return total


def _copy_of(pid: int, descriptor: int) -> int:
    if pid == os.getpid():
        return os.dup(descriptor)
    process = os.pidfd_open(pid)
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, descriptor, 0)
    finally:
        os.close(process)
    if copy < 0:
        raise OSError(ctypes.get_errno(), "cannot look at a connection of ssh")
    return int(copy)


def _scp_parallel(source: Path, addresses: list[Address], folder: Path) -> float:
    started = time.monotonic()
    copies = [
        subprocess.Popen(
            ["scp", *shell.options(address), str(source), f"{address.user}@{address.host}:{folder}/copy-{address.name}"]
        )
        for address in addresses
    ]
    with waiting_for(f"{len(copies)} times scp"):
        assert not any(copy.wait() for copy in copies)
    return time.monotonic() - started


@contextmanager
def _narrow_links(folder: Path) -> Iterator[list[Address]]:
    """An sshd in each of four network namespaces, behind a link of ``LIMIT`` in both directions."""
    with ExitStack() as stack:
        addresses = []
        for number in range(WORKERS):
            name = f"bench-{os.getpid()}-{number}"
            stack.callback(subprocess.run, ["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
            _link(name, number)
            server = sshd(f"n{number}", folder / name, f"10.213.{number}.2", ["ip", "netns", "exec", name])
            addresses.append(stack.enter_context(server))
        yield addresses


def _link(name: str, number: int) -> None:
    outer, inner, net = f"b{os.getpid() % 100000}-{number}o", f"b{os.getpid() % 100000}-{number}i", f"10.213.{number}"
    bucket = f"root tbf rate {LIMIT} burst 256kb latency 50ms"
    for command in (
        f"ip netns add {name}",
        f"ip link add {outer} type veth peer name {inner} netns {name}",
        f"ip addr add {net}.1/24 dev {outer}",
        f"ip link set {outer} up",
        f"ip -n {name} addr add {net}.2/24 dev {inner}",
        f"ip -n {name} link set {inner} up",
        f"ip -n {name} link set lo up",
        f"tc qdisc add dev {outer} {bucket}",
        f"tc -n {name} qdisc add dev {inner} {bucket}",
    ):
        subprocess.run(command.split(), check=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    measure(main, minutes=30)
