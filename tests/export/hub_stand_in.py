"""A server that takes uploads as the Hugging Face hub does, as far as its library asks: small files, one commit."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar


@dataclass
class Hub:
    """What was uploaded."""

    address: str = ""
    token: str = "hf_" + "t" * 34
    created: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    refused: int = 0


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[Hub]

    def do_POST(self) -> None:
        hub, body = self.hub, self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != f"Bearer {hub.token}":
            hub.refused += 1
            self._answer(401, {"error": "Invalid credentials"})
        elif self.path == "/api/repos/create":
            asked = json.loads(body)
            hub.created.append(asked)
            self._answer(200, {"url": f"{hub.address}/datasets/{asked['organization']}/{asked['name']}"})
        elif self.path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif re.search(r"/preupload/main$", self.path):
            paths = [each["path"] for each in json.loads(body)["files"]]
            self._answer(
                200, {"files": [{"path": each, "uploadMode": "regular", "shouldIgnore": False} for each in paths]}
            )
        elif found := re.search(r"^/api/(.+)/commit/main$", self.path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._answer(
                200, {"commitUrl": f"{hub.address}/{found[1]}/commit/c0ffee", "commitOid": "c0ffee", "success": True}
            )
        else:
            self._answer(404, {"error": self.path})

    def do_GET(self) -> None:
        self._answer(200, {"id": "ann/phone", "sha": "c0ffee", "siblings": []})

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass
