"""When Chromium draws: on request in a headless shell, by itself elsewhere; what is seen is the same."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from digirl_dist.emulator import chromium
from digirl_dist.emulator.chromium import HEADLESS_SHELLS, Chromium

pytestmark = pytest.mark.component

COUNTED = "<script>n = 0; (function next() {n += 1; requestAnimationFrame(next)})()</script>"
FRAME = "return new Promise(next => requestAnimationFrame(() => setTimeout(next)))"
SCROLLED = "<div id=box style='overflow: scroll; height: 200px'>{}</div>".format("<p>text</p>" * 50)


@pytest.fixture(scope="module", params=["headless shell", "whole browser"])
def browser(request: pytest.FixtureRequest, chromium_is_installed: None) -> Iterator[Chromium]:
    wanted = [name for name in chromium.BROWSERS if (name in HEADLESS_SHELLS) == (request.param == "headless shell")]
    if not any(map(shutil.which, wanted)):
        pytest.skip(f"this machine has no {request.param}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chromium, "BROWSERS", wanted)
        browser = Chromium(300, 300)
        yield browser
        browser.close()


def show(browser: Chromium, folder: Path, body: str) -> None:
    (folder / "page.html").write_text(f"<!doctype html><body>{body}</body>")
    browser.page.open((folder / "page.html").as_uri())


def test_a_picture_shows_what_was_scrolled_and_drawn_before(browser: Chromium, tmp_path: Path) -> None:
    show(browser, tmp_path, SCROLLED)
    seen = [browser.page.screenshot()]
    for change in ("scrollBy(0, 30)", "scrollBy(0, 30)", "style.background = 'red'", "style.height = '100px'"):
        browser.page.run(f"document.querySelector('#box').{change}; {FRAME}", awaits_frame=True)
        seen.append(browser.page.screenshot())
        assert seen[-1] == browser.page.screenshot(), "it has come to rest"
    assert len(set(seen)) == len(seen)


def test_a_page_that_never_rests_is_pictured(browser: Chromium, tmp_path: Path) -> None:
    moving = "<p id=p>x</p><script>(function next() {p.style.marginLeft = `${performance.now() % 99}px`;"
    show(browser, tmp_path, moving + "requestAnimationFrame(next)})()</script>")
    assert browser.page.screenshot().startswith(b"\x89PNG")


def test_a_script_may_wait_for_frames(browser: Chromium, tmp_path: Path) -> None:
    show(browser, tmp_path, COUNTED)
    three = "return new Promise(done => {const until = n + 3; (function look() {"
    three += "n < until ? requestAnimationFrame(look) : done(n >= until)})()})"
    assert browser.page.run(three) is True
    assert browser.page.run(three, awaits_frame=True) is True


def test_a_headless_shell_draws_nothing_that_nobody_asked_for(browser: Chromium, tmp_path: Path) -> None:
    show(browser, tmp_path, COUNTED)
    before = browser.page.run("return n")
    time.sleep(0.5)
    after = browser.page.run("return n")
    asked_for = chromium.draws_on_request(chromium.browser_program())
    assert after - before <= 2 if asked_for else after - before > 2


def test_where_the_mouse_was_on_the_page_before_is_forgotten(browser: Chromium, tmp_path: Path) -> None:
    hovered = "<style>p:hover {color: red}</style><p style='height: 250px'>text</p>"
    show(browser, tmp_path, hovered)
    first = browser.page.screenshot()
    browser.page.press((50, 50), (50, 50))
    assert browser.page.run("return document.querySelector('p:hover') !== null")
    show(browser, tmp_path, hovered)
    assert browser.page.screenshot() == first
