"""A real HTTP server on loopback that speaks OpenAI's chat completions as a test wants it to."""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Endpoint:
    """``script`` is what to do with the next requests; after it, every answer is ``then``."""

    url: str = ""
    then: str | Answer = "Verdict: yes"
    script: list[Answer] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Bodies, each with its ``key`` and the monotonic time ``at`` which it came."""
    models: list[dict[str, Any]] = field(default_factory=list)
    """What ``/models`` lists."""
    lock: threading.Lock = field(default_factory=threading.Lock)


def says(text: str | None) -> Answer:
    return answers_with(text, [])


def answers_with(
    text: str | None, log_probs: list[float], ids: Sequence[int] = (), prompt: Sequence[int] = ()
) -> Answer:
    """The same, with the log-probabilities of its tokens, and with their ids and the prompt's as vLLM tells them."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        message = {"role": "assistant", "content": text}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": message}
        if log_probs:
            tokens = [{"token": "x", "logprob": each, "bytes": None, "top_logprobs": []} for each in log_probs]
            choice["logprobs"] = {"content": tokens, "refusal": None}
        choice |= {"token_ids": list(ids)} if ids else {}
        usage = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}
        _send(handler, 200, {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
                             "usage": usage, **({"prompt_token_ids": list(prompt)} if prompt else {})})  # fmt: skip

    return answer


def sends(content: str) -> Answer:
    """Any body, with status 200."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        _begin(handler, {"Content-Length": str(len(content.encode()))})
        handler.wfile.write(content.encode())

    return answer


def fails(status: int, message: str = "no", **headers: str) -> Answer:
    return lambda handler: _send(handler, status, {"error": {"message": message}}, headers)


def hangs(seconds: float) -> Answer:
    return lambda _: time.sleep(seconds)


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(2)


def redirects(to: str) -> Answer:
    return lambda handler: _send(handler, 307, {}, {"Location": to})


def endless(handler: BaseHTTPRequestHandler) -> None:
    """A body of 2 GB, of which little is sent if nobody reads it."""
    _begin(handler, {"Content-Length": str(2 << 30)})
    with suppress(OSError):
        for _ in range(2 << 10):
            handler.wfile.write(b" " * (1 << 20))


def packed_zeros(handler: BaseHTTPRequestHandler) -> None:
    """A body of a few hundred kilobytes that unpacks to some hundred megabytes."""
    packer = zlib.compressobj(1, wbits=31)
    content = b"".join([*(packer.compress(b" " * (1 << 20)) for _ in range(200)), packer.flush()])
    _begin(handler, {"Content-Length": str(len(content)), "Content-Encoding": "gzip"})
    with suppress(OSError):
        handler.wfile.write(content)


def drips_a_body(handler: BaseHTTPRequestHandler) -> None:
    _begin(handler, {"Content-Length": "1000"})
    _drip(handler)


def drips_headers(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    _drip(handler)


def _drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte each tenth of a second, for half a minute."""
    with suppress(OSError):
        for _ in range(300):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)


def _begin(handler: BaseHTTPRequestHandler, headers: dict[str, str]) -> None:
    handler.send_response(200)
    for name, value in {"Content-Type": "application/json", **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()


def web_page(handler: BaseHTTPRequestHandler) -> None:
    page = b"<html>welcome</html>"
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html")
    handler.send_header("Content-Length", str(len(page)))
    handler.end_headers()
    handler.wfile.write(page)


@contextmanager
def endpoint(port: int = 0) -> Iterator[Endpoint]:
    served = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _send(self, 200, {"object": "list", "data": served.models})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with served.lock:
                asked = {"at": time.monotonic(), "key": self.headers["Authorization"], "path": self.path}
                served.requests.append({**body, **asked})
                then = says(served.then) if isinstance(served.then, str) else served.then
                answer = served.script.pop(0) if served.script else then
            answer(self)

        def log_message(self, *_: object) -> None:
            """Nothing to the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


def _send(handler: BaseHTTPRequestHandler, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
    content = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(content)))
    for name, value in (headers or {}).items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(content)
