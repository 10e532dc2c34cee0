"""Exchanges end when whoever makes them is closed, wherever they are by then."""

from __future__ import annotations

import socket
import threading

import pytest

from digirl_dist.assembly.validate import refuse_keyless
from digirl_dist.chat.http import BoundedHttp, ExchangeError
from digirl_dist.errors import SettingsError
from digirl_dist.settings import ChatSettings

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


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1080"),  # which needs a package of its own
        ("ALL_PROXY", "socks://127.0.0.1:7890/"),
        ("HTTP_PROXY", "http://127.0.0.1:port"),
        ("SSL_CERT_FILE", "/nowhere/ca.pem"),
        ("SSL_CERT_FILE", __file__),
    ],
)
def test_a_proxy_or_certificates_that_cannot_be_used_are_refused_before_a_run_is_written(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=rf"proxy or certificates cannot be used: .+ -> .*{variable}"):
        refuse_keyless("agent=endpoint", ChatSettings(model="m", key_variable=""), "agent", "endpoint")
    with pytest.raises(SettingsError, match=variable):
        BoundedHttp("key", limit_s=1.0)
