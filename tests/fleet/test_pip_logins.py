"""Logins of package indexes never show in the arguments of a process, and a real index gets them all the same."""

from __future__ import annotations

import base64
import os
import shutil
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest

from digirl_dist.errors import SettingsError
from digirl_dist.fleet.install import Package, build_wheel, ensure_installed, split_logins
from digirl_dist.settings import SshSettings
from digirl_dist.ssh.connect import connect
from digirl_dist.ssh.localhost_server import LocalhostServer

PASSWORD = "hunter2-and-more"
ENCODED = "hunter2%2Dand-more"


def test_logins_leave_the_arguments() -> None:
    found = split_logins(
        ["--extra-index-url", f"https://ann:{ENCODED}@pip.example:8443/simple", "--pre", "--proxy=http://p:q@h:1"]
    )
    assert found.words == ("--extra-index-url", "https://pip.example:8443/simple", "--pre")
    assert found.netrc == f"machine pip.example login ann password {PASSWORD}\n"
    assert found.proxy == "http://p:q@h:1"
    assert PASSWORD not in repr(found) and "p:q" not in repr(found)


@pytest.mark.parametrize(
    "args",
    [
        ["git+https://ghp_0123456789abcdefghij@example.org/x.git"],
        ["--config-settings=token=abcdef"],
        ["--password", "abc"],
        ["--index-url", "ftp://a:b@c/simple"],
        ["--index-url", "https://a:b%20c@d/simple"],
    ],
)
def test_what_would_show_all_the_same_is_refused(args: list[str]) -> None:
    with pytest.raises(SettingsError, match="install.pip_args") as refusal:
        split_logins(args)
    assert "abcdef" not in str(refusal.value) and "ghp_0" not in str(refusal.value)


class _Index(BaseHTTPRequestHandler):
    """An index of one package, behind a login."""

    def do_GET(self) -> None:
        time.sleep(0.5)  # so that whoever looks at the processes has time to see them
        expected = "Basic " + base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != expected:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        page = b'<a href="behindlogin-1.0-py3-none-any.whl">behindlogin-1.0-py3-none-any.whl</a>'
        body = _wheel() if self.path.endswith(".whl") else page
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream" if self.path.endswith(".whl") else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def _wheel() -> bytes:
    content, info = BytesIO(), "behindlogin-1.0.dist-info"
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("behindlogin.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: behindlogin\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"behindlogin.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return content.getvalue()


@pytest.fixture
def index() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


class _Watch(threading.Thread):
    """Reads the arguments of every process on the machine again and again, as ``ps`` of another user would."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: set[bytes] = set()
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    self.seen.add(path.read_bytes())
                except OSError:
                    continue


@pytest.mark.component
@pytest.mark.parametrize("uv", [False, True], ids=["pip", "uv"])
def test_no_process_of_an_installation_shows_the_password(
    uv: bool, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv and shutil.which("uv") is None:
        pytest.skip("uv is not on the PATH")
    args = split_logins(["--index-url", f"http://ann:{ENCODED}@{index}/simple"])
    package = Package(build_wheel(), ("behindlogin",), pip_args=args, uv=uv, limit_s=120.0)
    watch, folder = _Watch(), tmp_path / "on worker"
    watch.start()
    with LocalhostServer("w1", tmp_path / "server") as address, connect(address, SshSettings()) as connection:
        python = ensure_installed(connection, package, str(folder), sys.executable)
    watch.done.set()
    watch.join()
    assert list(Path(python).parent.parent.glob("lib/python*/site-packages/behindlogin.py"))
    assert any(index.encode() in line for line in watch.seen), "the installation was watched"
    secrets = (PASSWORD.encode(), ENCODED.encode())
    mine = [line for line in watch.seen if any(secret in line for secret in secrets)]
    assert not mine
    left = [path for path in folder.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    assert not left and not (folder / "netrc").exists()
