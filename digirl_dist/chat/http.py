"""HTTP exchanges with limits on the answer's size and on the whole time, whatever the server does."""

from __future__ import annotations

import asyncio
import math
import threading
from concurrent import futures
from contextlib import suppress
from typing import Annotated

import httpx
import msgspec

from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import one_line

LONGEST_ANSWER = 4 << 20
"""In bytes, as it comes over the network."""


class ExchangeError(Exception):
    """No usable answer came. ``status`` is 0 where none came at all."""

    def __init__(self, reason: str, may_pass: bool, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.may_pass = may_pass
        self.status = status
        self.retry_after_s = retry_after_s


def client(key: str) -> httpx.AsyncClient:
    """Returns a client that has made no connection yet.

    Raises SettingsError where the environment names a proxy or certificates that cannot be used.
    """
    try:
        return httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}", "Accept-Encoding": "identity"},
            timeout=None,  # the deadline of the exchange
            limits=httpx.Limits(max_connections=None),
        )
    except (httpx.InvalidURL, ImportError, ValueError, OSError) as error:
        raise SettingsError(
            f"the environment's proxy or certificates cannot be used: {one_line(str(error))} -> unset or correct "
            "ALL_PROXY, HTTP_PROXY, HTTPS_PROXY and NO_PROXY (small letters count, too), SSL_CERT_FILE and SSL_CERT_DIR"
        ) from None


class BoundedHttp:
    """Exchanges with one server, on an event loop of its own. Safe to use from any thread.

    A deadline on the event loop covers the whole exchange; timeouts of sockets cover one read each, so an answer in
    drops would never end. Redirects are not followed, as they would hand key and question to another server.
    """

    def __init__(self, key: str, limit_s: float) -> None:
        """``limit_s``: for one exchange. Raises as ``client``."""
        self._limit_s = limit_s
        self._http = client(key)
        self._loop = asyncio.new_event_loop()
        self._closed = futures.Future[bytes]()
        threading.Thread(target=self._loop.run_forever, name="chat", daemon=True).start()

    def exchange(self, url: str, body: bytes | None) -> bytes:
        """Returns the answer to a POST of the JSON ``body``, or to a GET without one. Raises ExchangeError."""
        try:
            exchanged = asyncio.run_coroutine_threadsafe(self._within_limit(url, body), self._loop)
            futures.wait([exchanged, self._closed], return_when=futures.FIRST_COMPLETED)  # a loop that ended ends none
            return exchanged.result(0)
        except (futures.CancelledError, futures.TimeoutError, RuntimeError):  # closed before or during the exchange
            raise ExchangeError("the exchange was stopped", may_pass=True) from None

    def close(self) -> None:
        """Ends all exchanges; a second call is harmless."""
        if not self._closed.done():
            self._closed.set_result(b"")
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    async def _end(self) -> None:
        exchanges = asyncio.all_tasks() - {asyncio.current_task()}
        for exchange in exchanges:
            exchange.cancel()
        await asyncio.gather(*exchanges, return_exceptions=True)
        await self._http.aclose()
        self._loop.stop()

    async def _within_limit(self, url: str, body: bytes | None) -> bytes:
        try:
            return await asyncio.wait_for(self._exchange(url, body), self._limit_s)
        except asyncio.TimeoutError:
            raise ExchangeError(f"no whole answer within {self._limit_s:g} s", may_pass=True) from None
        except httpx.InvalidURL as error:
            raise ExchangeError(str(error), may_pass=False) from None
        except httpx.HTTPError as error:
            may_pass = not isinstance(error, httpx.UnsupportedProtocol)
            raise ExchangeError(str(error) or type(error).__name__, may_pass) from None

    async def _exchange(self, url: str, body: bytes | None) -> bytes:
        method, headers = ("GET", None) if body is None else ("POST", {"Content-Type": "application/json"})
        async with self._http.stream(method, url, content=body, headers=headers) as response:
            content = await _whole(response)
        status = response.status_code
        if response.is_success:
            with suppress(msgspec.MsgspecError, ValueError, RecursionError):
                status = msgspec.json.decode(content, type=_Failed, strict=False).error.code
        if status < 300:
            return content
        raise ExchangeError(
            content.decode(errors="replace"), status in (408, 409, 429) or status >= 500, status, _retry_after(response)
        )


class _Failure(msgspec.Struct):
    code: Annotated[int, msgspec.Meta(ge=400, lt=600)]


class _Failed(msgspec.Struct):
    """The body by which gateways tell, under the status of a success, that the server behind them failed."""

    error: _Failure
    choices: None = None


async def _whole(response: httpx.Response) -> bytes:
    packed = response.headers.get("content-encoding", "identity")
    if packed.lower() != "identity":
        raise ExchangeError(f"an answer packed by {packed[:20]}, which was not asked for", may_pass=False)
    content = bytearray()
    async for part in response.aiter_raw():
        content += part
        if len(content) > LONGEST_ANSWER:
            raise ExchangeError(f"an answer of more than {LONGEST_ANSWER >> 20} MiB", may_pass=False)
    return bytes(content)


def _retry_after(response: httpx.Response) -> float:
    """Returns the seconds that the server asks to wait; 0 if it does not say."""
    try:
        asked = float(response.headers["retry-after"])
    except (KeyError, ValueError):
        return 0.0
    return asked if 0 <= asked < math.inf else 0.0
