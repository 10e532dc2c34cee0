"""One headless Chromium that leaves nothing behind: no process, no folder, no traffic."""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.remote_connection import ChromeRemoteConnection
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.proxy import Proxy, ProxyType
from selenium.webdriver.remote.client_config import ClientConfig
from urllib3.exceptions import HTTPError

from digirl_dist.errors import EmulatorError, SettingsError

HEADLESS_SHELLS = ("chromium-headless-shell", "chrome-headless-shell")
"""Chromium without its user interface: loads a page with half the work."""
BROWSERS = (*HEADLESS_SHELLS, "chromium", "chromium-browser", "google-chrome")
DRIVERS = ("chromedriver",)
# The limit of 60 frames per second stays. Without it a screenshot takes 5 ms in place of 35, but Chromium draws frames
# as fast as it can while a page loads: with more browsers than cores, each page cost three times the work.
FLAGS = (
    "--headless",
    "--no-sandbox",  # Chromium's sandbox does not start as root, which containers usually are.
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-quic",
    "--disable-sync",
    "--remote-debugging-pipe",  # No port, and Chromium ends by itself when chromedriver was killed.
)
_PAGE_LOAD_LIMIT_S = 30.0
_ANSWER_LIMIT_S = 60
_EXIT_LIMIT_S = 3.0
_SHORT_PATH = 107 - len("/digirl-chromium-abcdefgh/org.chromium.Chromium.abcdef/SingletonSocket")


class Chromium:
    """A browser and its driver with a throw-away folder for everything that either writes.

    Both stay in this process's group and session, so whoever kills the group ends them too.
    Raises SettingsError when a program is missing, EmulatorError when the browser does not start.
    """

    def __init__(self, width: int, height: int) -> None:
        """``width`` and ``height`` are those of the page's viewport, in pixels."""
        browser, driver = _program(BROWSERS, "chromium"), _program(DRIVERS, "chromium-driver")
        self._folder: str | None = _throw_away_folder()
        # Given the driver's path, selenium does not try to download one.
        self._service = Service(driver, env={**os.environ, "TMPDIR": self._folder, "HOME": self._folder})
        self._driver: webdriver.Remote | None = None
        self._browsers: list[psutil.Process] = []
        try:
            with selenium_errors("start"):
                self._service.start()
                self._driver = webdriver.Remote(_connection(self._service), options=_options(browser, self._folder))
                # All of them, because Debian's headless shell is started by a shell script that stays.
                self._browsers = psutil.Process(self._service.process.pid).children(recursive=True)
                self._driver.set_page_load_timeout(_PAGE_LOAD_LIMIT_S)
                metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
                self._devtools("Emulation.setDeviceMetricsOverride", metrics)
        except BaseException:
            self.close()
            raise

    @property
    def driver(self) -> webdriver.Remote:
        """Raises EmulatorError once closed."""
        if self._driver is None:
            raise EmulatorError("this Chromium is closed")
        return self._driver

    def screenshot(self) -> bytes:
        """PNG of the viewport, as it was drawn last."""
        shot = self._devtools("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True})
        return base64.b64decode(shot["data"])

    def close(self) -> None:
        """End both processes and remove the folder. A second call is harmless."""
        driver, self._driver = self._driver, None
        folder, self._folder = self._folder, None
        try:
            if driver is not None:
                driver.quit()
        except (WebDriverException, HTTPError, OSError):
            pass  # The driver is already dead; Chromium ends when the pipe between the two closes.
        finally:
            _stop(self._service)
            _end(self._browsers)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _devtools(self, command: str, params: dict[str, Any]) -> Any:
        return self.driver.execute("executeCdpCommand", {"cmd": command, "params": params})["value"]


@contextmanager
def selenium_errors(doing: str) -> Iterator[None]:
    """Errors of selenium, and of the connection to its driver, become EmulatorError."""
    try:
        yield
    except (WebDriverException, HTTPError, OSError) as exc:
        reason = (str(exc).strip() or type(exc).__name__).splitlines()[0]
        raise EmulatorError(f"Chromium failed to {doing}: {reason}") from exc


def _stop(service: Service) -> None:
    # selenium gives a service its process only when the program could be run.
    if getattr(service, "process", None) is not None:
        service.stop()


def _end(processes: list[psutil.Process]) -> None:
    """Wait for their end, so that they write no more, and kill what does not come to it."""
    _, running = psutil.wait_procs(processes, timeout=_EXIT_LIMIT_S)
    for process in running:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(running, timeout=_EXIT_LIMIT_S)


def _throw_away_folder() -> str:
    """Where temporary files belong; under /tmp if that path is too long for a socket of Chromium's inside it."""
    usual = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="digirl-chromium-", dir=usual if len(usual) <= _SHORT_PATH else "/tmp")


def _program(names: tuple[str, ...], package: str) -> str:
    for name in names:
        if path := shutil.which(name):
            return path
    raise SettingsError(f"{' or '.join(names)} is not on PATH of this machine; install it (apt install {package})")


def _options(browser: str, folder: str) -> webdriver.ChromeOptions:
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.unhandled_prompt_behavior = "dismiss"
    for flag in (*FLAGS, f"--user-data-dir={folder}/profile"):
        options.add_argument(flag)
    if os.path.basename(browser) in HEADLESS_SHELLS:
        options.set_capability("browserName", "chrome-headless-shell")  # or the driver waits for a window
    return options


def _connection(service: Service) -> ChromeRemoteConnection:
    """To the driver on this machine, past any proxy that the environment names."""
    direct = Proxy({"proxyType": ProxyType.DIRECT})
    config = ClientConfig(service.service_url, proxy=direct, timeout=_ANSWER_LIMIT_S)
    return ChromeRemoteConnection(service.service_url, client_config=config)
