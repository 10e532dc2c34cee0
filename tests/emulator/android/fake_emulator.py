"""A program that behaves as Android's ``emulator`` does at its start, on its console and when things go wrong.

``behaviour.json`` beside the AVD's images says what befalls it: ``boots`` is a list of fates, one per start (the last
one for all further starts), ``loads`` the same for loads of a snapshot, ``boot_s`` how long a boot takes.
``events.jsonl`` there tells what happened when.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import sys
import time
from pathlib import Path

from emulator.android.adbd import Adbd
from emulator.android.phone_shell import PhoneShell

TOKEN = ".emulator_console_auth_token"
LAST_WORDS = {
    "kvm": "ERROR   | x86_64 emulation currently requires hardware acceleration!\n"
    "CPU acceleration status: This user doesn't have permissions to use KVM (/dev/kvm).",
    "port": "ERROR   | console port is already in use. Choose another one with -port.",
    "crash": "FATAL   | Unable to create the guest's memory",
}


class Machine:
    """One start of the program."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.content = Path(os.environ["ANDROID_AVD_HOME"]) / f"{options.avd}.avd"
        behaviour = json.loads((self.content / "behaviour.json").read_text())
        self.boot_s: float = behaviour.get("boot_s", 0.1)
        self.boot_fate = self._fate(behaviour.get("boots", ["fine"]), "start")
        self.loads: list[str] = behaviour.get("loads", ["fine"])
        self.shell = PhoneShell(booted=False)
        self.adbd = Adbd(self.shell)
        self.ended = asyncio.Event()

    def _fate(self, fates: list[str], event: str) -> str:
        """What this start, or load, is to suffer; counts over all instances of the AVD."""
        seen = sum(line["event"] == event for line in events(self.content))
        return fates[min(seen, len(fates) - 1)]

    def tell(self, event: str) -> None:
        line = {
            "event": event,
            "time": time.monotonic(),
            "port": self.options.port,
            "pid": os.getpid(),
            "argv": sys.argv[1:],
        }
        with (self.content / "events.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    async def run(self) -> int:
        self.tell("start")
        if self.boot_fate in LAST_WORDS:
            await asyncio.sleep(0.1)
            sys.stdout.write(LAST_WORDS[self.boot_fate] + "\n")
            return 1
        if self.boot_fate == "hang":
            await asyncio.sleep(3600)
        console = await asyncio.start_server(self._console, "127.0.0.1", self.options.port)
        self.adbd.mode = self.boot_fate if self.boot_fate in ("offline", "unauthorized") else "device"
        await self.adbd.start(self.options.port + 1)
        announce(self.options.port + 1)
        await asyncio.sleep(self.boot_s)
        if self.boot_fate == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        self.shell.booted = self.boot_fate != "endless"
        self.tell("booted")
        await self.ended.wait()
        self.adbd.close()
        console.close()
        return 0

    async def _console(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        token = (Path.home() / TOKEN).read_text()
        allowed = not token
        greeting = "type 'help' for a list of commands" if allowed else "Authentication required"
        writer.write(f"Android Console: {greeting}\r\nOK\r\n".encode())
        while line := (await reader.readline()).decode().split():
            if line[0] == "quit":
                break
            if line[0] == "auth":
                allowed = line[1:] == [token]
                answer = "OK" if allowed else f"KO: authentication token does not match ~/{TOKEN}"
            elif not allowed:
                answer = f"KO: bad sub-command {line[0]}"
            else:
                answer = await self._command(line)
            writer.write(f"{answer}\r\n".encode())
        writer.close()

    async def _command(self, words: list[str]) -> str:
        if words[:3] == ["avd", "snapshot", "save"]:
            if self.options.read_only:
                return "KO: snapshots cannot be saved in read-only mode"
            make_snapshot(self.content, words[3])
            return "OK"
        if words[:3] == ["avd", "snapshot", "load"]:
            return await self._load(words[3])
        if words == ["kill"]:
            self.ended.set()
            return "OK: killing emulator, bye bye"
        return f"KO: unknown command {words[0]}, try 'help'"

    async def _load(self, name: str) -> str:
        fate = self._fate(self.loads, "load")
        self.tell("load")
        if fate == "hang":
            await asyncio.sleep(3600)
        if fate == "refuse" or not (self.content / "snapshots" / name / "snapshot.pb").exists():
            return f"KO: Device 'cache' does not have the requested snapshot '{name}'"
        self.shell.snapshot()
        self.adbd.mode = "offline" if fate in ("offline", "dumb") else "device"
        self.adbd.drop()
        if fate == "dumb":
            asyncio.get_running_loop().call_later(0.5, setattr, self.adbd, "mode", "device")
        announce(self.options.port + 1)
        return "OK"


def announce(adb_port: int) -> None:
    """Tell the adb server that an emulator is there. One that does not run will find out when it starts."""
    import socket

    request = f"host:emulator:{adb_port}"
    try:
        with socket.create_connection(("127.0.0.1", int(os.environ.get("ANDROID_ADB_SERVER_PORT", 5037))), 1) as link:
            link.sendall(f"{len(request):04x}{request}".encode())
    except OSError:
        pass


def make_avd(home: Path, name: str, behaviour: dict[str, object], snapshots: tuple[str, ...] = ("digirl",)) -> Path:
    """An AVD for this program; answers with its folder."""
    content = home / f"{name}.avd"
    content.mkdir(parents=True)
    (home / f"{name}.ini").write_text(f"avd.ini.encoding=UTF-8\npath={content}\ntarget=android-33\n")
    (content / "behaviour.json").write_text(json.dumps(behaviour))
    (content / "events.jsonl").touch()
    for snapshot in snapshots:
        make_snapshot(content, snapshot)
    return content


def make_snapshot(content: Path, name: str) -> None:
    folder = content / "snapshots" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "snapshot.pb").touch()


def make_token(home: Path) -> None:
    (home / TOKEN).write_text(secrets.token_hex(8))


def events(content: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (content / "events.jsonl").read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-avd", required=True)
    parser.add_argument("-port", type=int, default=5554)
    parser.add_argument("-snapshot")
    parser.add_argument("-gpu")
    for flag in (
        "read-only",
        "no-snapshot-save",
        "no-snapshot-load",
        "no-window",
        "no-audio",
        "no-boot-anim",
        "skip-adb-auth",
    ):
        parser.add_argument(f"-{flag}", action="store_true")
    options = parser.parse_args()
    if not (Path(os.environ["ANDROID_AVD_HOME"]) / f"{options.avd}.ini").exists():
        sys.stdout.write(f"PANIC: Unknown AVD name [{options.avd}], use -list-avds to see valid list.\n")
        return 1
    return asyncio.run(Machine(options).run())


if __name__ == "__main__":
    sys.exit(main())
