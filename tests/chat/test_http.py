"""Exchanges end when whoever makes them is closed, wherever they are by then."""

from __future__ import annotations

import socket
import threading

import pytest

from digirl_dist.chat.http import BoundedHttp, ExchangeError

pytestmark = pytest.mark.component


@pytest.mark.parametrize("head_start_s", [0.0, 0.001, 0.02])
def test_closing_ends_every_exchange_of_a_server_that_says_nothing(head_start_s: float) -> None:
    ended = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"

        def exchange(http: BoundedHttp) -> None:
            with pytest.raises(ExchangeError, match="the exchange was stopped"):
                http.exchange(url, b"{}")
            ended.append(http)

        for _ in range(20):
            http = BoundedHttp("key", limit_s=600.0)
            waiting = [threading.Thread(target=exchange, args=[http], daemon=True) for _ in range(2)]
            for thread in waiting:
                thread.start()
            waiting[0].join(head_start_s)
            http.close()
            http.close()
            for thread in waiting:
                thread.join(60)
    assert len(ended) == 40
