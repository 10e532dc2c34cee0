"""One headless Chromium that leaves nothing behind: no process, no folder, no traffic, and no port.

It is driven over two pipes that it inherits. A driver program such as chromedriver listens on a TCP port of loopback
instead, where any user of the machine may tell it to start a program as its own user.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from digirl_dist.child_process import keep_short, last_lines, widen
from digirl_dist.emulator.devtools import FRAME_FLAGS, Devtools, DevtoolsError, Frames, Params, key_events
from digirl_dist.errors import EmulatorError, SettingsError, on_error

HEADLESS_SHELLS = ("chromium-headless-shell", "chrome-headless-shell")
"""Chromium without its user interface: loads a page with half the work."""
BROWSERS = (*HEADLESS_SHELLS, "chromium", "chromium-browser", "google-chrome")
# A headless shell draws on request (``FRAME_FLAGS``). Other browsers keep their limit of 60 frames a second: without
# it, a screenshot takes 5 ms in place of 35, but they draw as fast as they can while a page loads: with more browsers
# than cores, each page cost three times the work.
FLAGS = (
    "--headless",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--in-process-gpu",  # which draws in software then: a process less, and a page loads in three quarters of the time
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--allow-pre-commit-input",
    "--enable-blink-features=ComputedAccessibilityInfo",  # pages may ask for the names and roles of elements
    # What is taken out under the mouse and put back, as menus do to bring it to the front, is still what is pressed.
    "--disable-blink-features=BoundaryEventDispatchTracksNodeRemoval",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-quic",
    "--disable-sync",
    "--disable-hang-monitor",
    "--disable-popup-blocking",
    "--disable-prompt-on-repost",
    # A page is loaded again and again. Without the first two, V8 finds what it compiled the time before; without the
    # third, the frame of the page before serves for the next one. A page then loads in two thirds of the time.
    "--disable-features=ScriptStreaming,BackgroundResourceFetch,RenderDocument",
    "--password-store=basic",
    "--remote-debugging-pipe",  # No port that others could use, and Chromium ends by itself when this process does.
)
_START_LIMIT_S = 60.0
_PAGE_LOAD_LIMIT_S = 30.0
_ANSWER_LIMIT_S = 60.0
_EXIT_LIMIT_S = 3.0
_LOOK_S = 0.01
_PIPE_BYTES = 1 << 20
_ABOVE_STANDARD = 10
_SHORT_PATH = 107 - len("/digirl-chromium-abcdefgh/org.chromium.Chromium.abcdef/SingletonSocket")
_NAVIGATED = ("navigated", "context was destroyed", "execution context", "Promise was collected")
"""Words of the reasons for which a script was not carried out because the page had just been left."""

_NO_SANDBOX = "No usable sandbox"
_SANDBOX_REMEDY = (
    "Chromium has no sandbox on this machine; install one (apt install chromium-sandbox), or let users make namespaces "
    "(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)"
)

Point = tuple[int, int]


class Chromium:
    """A browser with one page, and a throw-away folder for everything that it writes.

    It stays in this process's group and session, so whoever kills the group ends it too.
    """

    def __init__(self, width: int, height: int) -> None:
        """``width`` and ``height`` are those of the page's viewport, in pixels.

        Raises SettingsError when the program or its sandbox is missing, EmulatorError when it does not start.
        """
        browser = browser_program()
        self._folder: str | None = _throw_away_folder()
        self._browser: _Browser | None = None
        with on_error(self.close):
            try:
                with chromium_errors("start"):
                    self._browser = _Browser(browser, self._folder)
                    self._page = Page(self._browser.devtools, width, height, draws_on_request(browser))
                    self._browser.note_descendants()
            except EmulatorError as error:
                said = last_lines(_log(self._folder))
                if _NO_SANDBOX in said:
                    raise SettingsError(_SANDBOX_REMEDY) from error
                raise EmulatorError(f"{error}{said}") from error

    @property
    def page(self) -> Page:
        """Raises EmulatorError once closed."""
        if self._browser is None:
            raise EmulatorError("this Chromium is closed")
        return self._page

    def close(self) -> None:
        """End all processes and remove the folder. A second call is harmless."""
        browser, self._browser = self._browser, None
        folder, self._folder = self._folder, None
        try:
            if browser is not None:
                browser.end()
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


class Page:
    """The only page of a browser. Every method raises EmulatorError when the browser is gone or does not answer."""

    def __init__(self, devtools: Devtools, width: int, height: int, draws_on_request: bool) -> None:
        """``draws_on_request``: the browser was started with ``FRAME_FLAGS``."""
        self._devtools = devtools
        self._frames = Frames(devtools) if draws_on_request else None
        self._corner = width - 1, height - 1
        self._loading = False
        self._loaded = ""
        devtools.heard = self._hear
        deadline = time.monotonic() + _START_LIMIT_S
        self._frame = _first_page(devtools, deadline)
        attached = devtools.ask("Target.attachToTarget", {"targetId": self._frame, "flatten": True}, deadline)
        devtools.session = attached["sessionId"]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        commands: list[tuple[str, Params]] = [
            ("Page.enable", {}),
            ("Page.setLifecycleEventsEnabled", {"enabled": True}),
            ("Emulation.setDeviceMetricsOverride", metrics),
        ]
        devtools.ask_all(commands, deadline)

    def open(self, url: str) -> None:
        """Load a page, with all that belongs to it. The mouse waits in the lower right corner of the viewport."""
        deadline = time.monotonic() + _PAGE_LOAD_LIMIT_S
        self._devtools.send(*_mouse("mouseMoved", self._corner), deadline)
        found = self._devtools.ask("Page.navigate", {"url": url}, deadline)
        if reason := found.get("errorText"):
            raise EmulatorError(f"{url}: {reason}")
        self._devtools.wait(lambda: self._loaded == found["loaderId"] and not self._loading, deadline, f"load {url}")

    def run(self, script: str, *arguments: Any, awaits_frame: bool = False) -> Any:
        """What the body of a JavaScript function returns for these arguments, once it is known if it is a promise.

        If the page is being left, the script runs on the next one, after it was loaded. ``awaits_frame`` saves the wait
        of a script that waits for the next frame.
        """
        call = f"(function () {{{script}\n}}).apply(null, {json.dumps(arguments)})"
        params = {"expression": call, "returnByValue": True, "awaitPromise": True}
        deadline = time.monotonic() + _ANSWER_LIMIT_S
        frame = partial(self._frames.begin, deadline) if awaits_frame and self._frames is not None else None
        while True:
            self._devtools.wait(lambda: not self._loading, deadline, "load the page")
            try:
                found = self._devtools.ask("Runtime.evaluate", params, deadline, frame)
            except DevtoolsError as error:
                if not any(word in str(error) for word in _NAVIGATED):
                    raise
                time.sleep(_LOOK_S)
                continue
            if thrown := found.get("exceptionDetails"):
                said = thrown.get("exception", {}).get("description") or thrown["text"]
                raise EmulatorError(f"the script failed: {said.splitlines()[0]}")
            return found["result"].get("value")

    def screenshot(self) -> bytes:
        """PNG of the viewport."""
        if self._frames is not None:
            return self._frames.picture(time.monotonic() + _ANSWER_LIMIT_S)
        found = self._ask(("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True}))
        return base64.b64decode(found["data"])

    def move(self, to: Point) -> None:
        """Move the mouse, in pixels of the viewport."""
        self._ask(_mouse("mouseMoved", to))

    def press(self, start: Point, end: Point, clicks: int = 1) -> None:
        """Press the mouse's button at ``start`` and let it go at ``end``, both in pixels of the viewport.

        The last of several ``clicks``: the second marks a word, the third a paragraph.
        """
        for count in range(1, clicks):
            self._ask(_mouse("mousePressed", start, clicks=count), _mouse("mouseReleased", start, clicks=count))
        down = [_mouse("mouseMoved", start), _mouse("mousePressed", start, clicks=clicks)]
        if end != start:
            # Two moves: what can be dragged starts at the first and follows from the second. Of moves that are sent
            # at once the page would see the last only.
            middle = (start[0] + end[0]) // 2, (start[1] + end[1]) // 2
            self._ask(*down, _mouse("mouseMoved", middle, held=True))
            down = [_mouse("mouseMoved", end, held=True)]
        self._ask(*down, _mouse("mouseReleased", end, clicks=clicks))

    def type(self, text: str) -> None:
        """Press and release the keys of a text, one after the other."""
        if events := key_events(text):
            self._ask(*(("Input.dispatchKeyEvent", event) for event in events))

    def _ask(self, *commands: tuple[str, Params]) -> dict[str, Any]:
        return self._devtools.ask_all(commands, time.monotonic() + _ANSWER_LIMIT_S)[-1]

    def _hear(self, event: str, params: dict[str, Any]) -> None:
        match event:
            case "Page.frameStartedLoading" if params["frameId"] == self._frame:
                self._loading = True
            case "Page.frameStoppedLoading" if params["frameId"] == self._frame:
                self._loading = False
            case "Page.lifecycleEvent" if params["frameId"] == self._frame and params["name"] == "load":
                self._loaded = params["loaderId"]
            case "Page.javascriptDialogOpening":
                answer = {"accept": params["type"] == "beforeunload"}  # that one asks whether to stay on the page
                self._devtools.send("Page.handleJavaScriptDialog", answer, time.monotonic() + _ANSWER_LIMIT_S)
            case "Inspector.targetCrashed":
                raise EmulatorError("the page has crashed")


class _Browser:
    """The processes of a browser, and the pipes to it."""

    def __init__(self, program: str, folder: str) -> None:
        commands, to_browser = _pipe()
        from_browser, answers = _pipe()
        try:
            self.pid = _spawn(program, folder, commands, answers)
        except OSError:
            os.close(to_browser)
            os.close(from_browser)
            raise
        finally:
            os.close(commands)
            os.close(answers)
        self.devtools = Devtools(to_browser, from_browser)
        self._processes = [psutil.Process(self.pid)]

    def note_descendants(self) -> None:
        """All of them, because Debian's programs are shell scripts of which one stays."""
        with suppress(psutil.NoSuchProcess):
            self._processes += self._processes[0].children(recursive=True)

    def end(self) -> None:
        """Asks the browser to end and waits, so that it writes nothing more; kills what has not ended in time."""
        self.note_descendants()
        with suppress(EmulatorError):
            self.devtools.session = None
            self.devtools.send("Browser.close", {}, time.monotonic())
        self.devtools.close()  # it ends by this too
        _, running = psutil.wait_procs(self._processes, timeout=_EXIT_LIMIT_S)
        for process in running:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(running, timeout=_EXIT_LIMIT_S)


@contextmanager
def chromium_errors(doing: str) -> Iterator[None]:
    """Says in errors what was being done."""
    try:
        yield
    except (EmulatorError, OSError) as exc:
        raise EmulatorError(f"Chromium failed to {doing}: {exc}") from exc


def _pipe() -> tuple[int, int]:
    """Both ends above the numbers that the browser looks for, and large enough for a screenshot."""
    ends = os.pipe()
    widen(ends[1], _PIPE_BYTES)
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE_STANDARD) for end in ends)
    for end in ends:
        os.close(end)
    return read, write


def _spawn(program: str, folder: str, commands: int, answers: int) -> int:
    """Start the browser, which reads commands from descriptor 3 and writes answers to 4. Raises OSError."""
    writes = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(_log(folder)), writes, 0o600),
        (os.POSIX_SPAWN_DUP2, commands, 3),
        (os.POSIX_SPAWN_DUP2, answers, 4),
    ]
    environment = {**os.environ, "TMPDIR": folder, "HOME": folder}
    words = [program, *flags(folder, program), "about:blank"]
    browser = os.posix_spawn(program, words, environment, file_actions=files)
    keep_short(_log(folder))
    return browser


def flags(folder: str, program: str) -> list[str]:
    """What a browser is started with. Its sandbox cannot start as root, which containers usually are."""
    unguarded = ["--no-sandbox"] if os.geteuid() == 0 else []
    drawing = FRAME_FLAGS if draws_on_request(program) else ()
    return [*FLAGS, *drawing, *unguarded, f"--user-data-dir={folder}/profile"]


def draws_on_request(program: str) -> bool:
    """Whether a browser can be started with ``FRAME_FLAGS``; those of macOS cannot."""
    return Path(program).name in HEADLESS_SHELLS and sys.platform != "darwin"


def _first_page(devtools: Devtools, deadline: float) -> str:
    """The page that a browser has from its start; its number is that of its frame, too. Raises EmulatorError."""
    while time.monotonic() < deadline:
        targets = devtools.ask("Target.getTargets", {}, deadline)["targetInfos"]
        if pages := [target["targetId"] for target in targets if target["type"] == "page"]:
            return str(pages[0])
        time.sleep(_LOOK_S)
    raise EmulatorError("it opened no page")


def _mouse(kind: str, at: Point, held: bool = False, clicks: int = 1) -> tuple[str, Params]:
    """``clicks`` stays 1 however soon presses follow each other: time does not decide what an action does."""
    pressed = kind != "mouseMoved"
    params = {"type": kind, "x": at[0], "y": at[1], "button": "left" if pressed or held else "none"}
    buttons = int(held or kind == "mousePressed")
    return "Input.dispatchMouseEvent", {**params, "buttons": buttons, "clickCount": clicks * pressed}


def _throw_away_folder() -> str:
    """Where temporary files belong; under /tmp if that path is too long for a socket of Chromium's inside it."""
    usual = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="digirl-chromium-", dir=usual if len(usual) <= _SHORT_PATH else "/tmp")


def _log(folder: str) -> Path:
    return Path(folder) / "chromium.log"


def browser_program() -> str:
    """Returns the path of the browser of this machine. Raises SettingsError where there is none."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    raise SettingsError(f"{' or '.join(BROWSERS)} is not on PATH of this machine; install it (apt install chromium)")
