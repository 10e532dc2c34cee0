"""The viewer in a real Chromium: ten questions in three clicks each, hostile content, what is live, one file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from hostile_texts import GENERATED, HOSTILE
from small_run import WORKERS, append, episode, landed, make_run
from viewer_site import Browser, served

from digirl_dist.report.bundle import write_bundle, write_report
from digirl_dist.report.viewed import ViewedRun
from digirl_dist.storage import episode_file, parquet

pytestmark = [pytest.mark.component, pytest.mark.long_file(60), pytest.mark.timeout(600)]


PLACES = (
    *("#/runs", "#/run/seed-0", "#/episodes", "#/tasks", "#/workers", "#/events", "#/events?worker=10.0.0.3&slot=0"),
    *("#/episode/seed-0/t3.0", "#/compare/seed-0?keys=t3.0,t3.1"),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    alike = [make_run(root / f"seed-{seed}", iterations=5, seed=seed) for seed in range(2)]
    return [*alike, make_run(root / "digirl", iterations=2, train_algorithm="digirl")]


@pytest.fixture(scope="module")
def shown(chromium_is_installed: None, folders: list[Path]) -> Iterator[Browser]:
    with served(folders) as viewer:
        browser = Browser(viewer.url)
        yield browser
        browser.close()


@pytest.fixture
def browser(shown: Browser) -> Iterator[Browser]:
    shown.go("#/workers")
    shown.go("#/runs")
    shown.says("3 runs")
    shown.clicks = 0
    yield shown
    assert shown.clicks <= 3, "clicks to the answer"


@pytest.mark.nightly
def test_requests_that_the_browser_breaks_off_are_sent_again(shown: Browser) -> None:
    """Chromium does so to all of them whenever a network interface of the machine comes or goes."""
    broken_off = "left-- > 0 ? Promise.reject(new TypeError('Failed to fetch')) : real(...of)"
    shown.page.run(f"const real = window.fetch; let left = 2; window.fetch = (...of) => ({broken_off})")
    shown.go("#/episode/seed-0/t3.0")
    shown.wait("document.querySelector('h1') !== null")


@pytest.mark.nightly
def test_which_worker_loses_time(browser: Browser) -> None:
    browser.click("nav a", "Workers")
    browser.says(f"{WORKERS[1]} loses the largest share")


def test_when_was_a_worker_lost_and_why(browser: Browser) -> None:
    browser.click("nav a", "Workers")
    browser.wait("document.querySelectorAll('[data-event=worker_lost]').length === 1")
    move = "lost.dispatchEvent(new MouseEvent('mousemove', {bubbles: true}))"
    browser.page.run(f"const lost = document.querySelector('[data-event=worker_lost]'); {move}")
    browser.says("silent for 14 s", "#tip")


def test_why_was_this_step_not_learned(browser: Browser) -> None:
    browser.click("nav a", "Episodes")
    browser.click("label[for=o-failure]", "failure")
    browser.click(".item a")
    browser.wait("document.querySelector('#verdict') !== null")
    assert "left out" in browser.text("#verdict") and "return 0 is not among the best" in browser.text("#verdict")


def test_when_did_it_learn_a_task(browser: Browser) -> None:
    browser.click("nav a", "Tasks")
    browser.says("iteration 4", ".tasks")


def test_which_episodes_ran_again_after_an_error(browser: Browser) -> None:
    browser.click("nav a", "Episodes")
    browser.choose("#f-error", "trouble")
    browser.says("1 of 30 episodes")
    browser.says("the emulator hung")


def test_what_do_the_runs_differ_in(browser: Browser) -> None:
    browser.says("filtered_bc", "#differences")
    browser.says('"digirl"', "#differences")
    assert "learning_rate" not in browser.text("#differences")


def test_how_much_do_the_seeds_differ(browser: Browser) -> None:
    browser.wait("document.querySelectorAll('.band').length >= 2")
    assert "seed-0 and 1 more seeds" in browser.page.run("return document.querySelector('.chart svg').ariaLabel")


def test_which_episodes_are_behind_a_point_of_a_curve(browser: Browser) -> None:
    browser.go("#/runs")
    browser.click(".pickable .catch")
    browser.wait("location.hash.startsWith('#/episodes?run=seed-0&iteration_from=2')")
    browser.says("6 of 30 episodes")


def test_a_click_on_a_curve_opens_the_run_that_it_is_of(browser: Browser) -> None:
    browser.go("#/runs")
    browser.wait("document.querySelectorAll('.chart .r2.dot').length > 1")
    at = """const dot = document.querySelectorAll('.chart .r2.dot')[1].getBoundingClientRect();
      const place = {bubbles: true, clientX: dot.x + dot.width / 2, clientY: dot.y};"""
    catcher = "document.querySelector('.chart .catch')"
    browser.page.run(f"{at} {catcher}.dispatchEvent(new MouseEvent('mousemove', place))")
    browser.says("click: episodes of digirl", "#tip")
    browser.page.run(f"{at} {catcher}.dispatchEvent(new MouseEvent('click', place))")
    browser.wait("location.hash.startsWith('#/episodes?run=digirl&iteration_from=1')")


def test_where_would_the_policy_have_touched(browser: Browser) -> None:
    browser.click("nav a", "Episodes")
    browser.click(".item a")
    browser.wait("document.querySelector('.bar-row') !== null")
    browser.says("tap", ".bars")
    assert browser.page.run("return document.querySelector('.heat') !== null")


def test_how_did_the_same_start_end_for_others_and_for_other_policies(browser: Browser) -> None:
    browser.click("nav a", "Episodes")
    browser.click(".item a")
    browser.says("Same task and seed")
    browser.click(".others a.button", "across checkpoints")
    browser.wait("document.querySelectorAll('.strip').length === 10")


def test_what_changed_on_the_screen(browser: Browser) -> None:
    browser.go("#/episode/seed-0/t3.0")
    browser.click("#toggle-changes")
    browser.says("% of the screen changed")
    browser.wait("document.querySelector('canvas.changed').width === 108")


def test_the_keyboard_leads_through_steps_and_episodes(browser: Browser) -> None:
    browser.go("#/episodes?run=seed-0&iteration_from=3&iteration_to=3")
    browser.says("6 of 30")
    browser.go("#/episode/seed-0/t3.1")
    browser.says("Step 0")
    browser.press("ArrowRight")
    browser.says("Step 1")
    browser.press("End")
    browser.says("The end")
    assert browser.page.run("return location.hash") == "#/episode/seed-0/t3.1?step=3"
    browser.press("j")
    browser.wait("location.hash.startsWith('#/episode/seed-0/t3.2')")
    browser.says("Step 0")
    browser.press("Escape")
    browser.wait("location.hash.startsWith('#/episodes?run=seed-0&iteration_from=3')")
    browser.press("?")
    browser.says("across checkpoints", "dialog[open]")
    browser.click("dialog button")
    browser.wait("!document.querySelector('dialog').open")


def test_the_skip_link_stays_in_the_view_and_a_step_that_is_chosen_keeps_the_focus(browser: Browser) -> None:
    browser.go("#/episode/seed-0/t3.1")
    browser.says("Step 0")
    browser.page.run("document.querySelector('.skip').click()")
    browser.wait("document.activeElement.id === 'main'")
    assert browser.page.run("return location.hash") == "#/episode/seed-0/t3.1"
    browser.page.run("const frame = document.querySelectorAll('.frame')[2]; frame.focus(); frame.click()")
    browser.says("Step 2")
    assert browser.page.run("return document.activeElement.getAttribute('aria-current')") == "step"


def test_an_episode_that_the_list_lacks_has_neighbours_too(browser: Browser) -> None:
    browser.go("#/episodes?run=seed-0&iteration_from=3&iteration_to=3")
    browser.says("6 of 30")
    browser.go("#/episode/seed-0/t1.0")
    browser.says("Step 0")
    browser.press("j")
    browser.wait("location.hash.startsWith('#/episode/seed-0/t1.1')")


def test_the_list_is_as_it_was_left(browser: Browser) -> None:
    browser.go("#/episodes?run=seed-0")
    browser.says("30 of 30")
    browser.choose("#f-task", "open the clock")
    browser.says("10 of 30")
    browser.page.run(
        "document.querySelector('.list').style.height = '120px'; document.querySelector('.list').scrollTop = 90"
    )
    browser.wait("document.querySelector('.rows').style.transform !== ''")
    browser.page.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
    browser.click(".item a")
    browser.wait("document.querySelector('.crumbs') !== null")
    browser.press("Escape")
    browser.says("10 of 30")
    assert browser.page.run("return location.hash") == "#/episodes?run=seed-0&task=open+the+clock"
    assert browser.page.run("return document.querySelector('#f-task').value") == "open the clock"


def test_a_page_that_is_loaded_anew_keeps_its_filters(browser: Browser) -> None:
    browser.go("#/episodes?run=seed-0&task=open+the+clock")
    browser.page.run("window.old = true; location.reload()")
    browser.wait("window.old === undefined && document.querySelector('#main p.hint') !== null")
    browser.says("10 of 30")
    browser.wait("document.querySelectorAll('#f-worker option').length === 3")
    browser.choose("#f-worker", WORKERS[0])
    browser.says("5 of 30")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("#/constructor", "3 runs"),
        ("#/episodes?run=seed-0&sort=constructor", "30 of 30"),
        ("#/episode/seed-0/t3.0?step=1.5", "Step 1"),
        ("#/episode/seed-0", "There is no episode"),
        ("#/episode/seed-0/t9.9", "There is no episode t9.9 in seed-0"),
    ],
)
def test_an_address_that_nobody_made_shows_what_there_is(browser: Browser, address: str, says: str) -> None:
    browser.page.run("location.hash = arguments[0]", address)  # the page may correct it at once
    browser.says(says)


def test_an_address_leads_to_a_step_of_an_episode(browser: Browser) -> None:
    browser.go("#/episode/digirl/t1.0?step=2")
    browser.says("Step 2")
    browser.wait("document.querySelector('#verdict') !== null")
    browser.says("advantage", ".panel")
    browser.press("j")
    browser.wait("location.hash === '#/episode/digirl/t1.1'")


def test_filters_and_order_are_those_that_were_asked_for(browser: Browser) -> None:
    rows = "[...document.querySelectorAll('.item')].map((row) => [...row.children].map((cell) => cell.innerText))"
    browser.go("#/episodes?run=seed-0&outcome=success&iteration_from=1&iteration_to=2&sort=iteration")
    browser.says("6 of 30 episodes, 6 successful")
    found = browser.page.run(f"return {rows}")
    assert [row[1] for row in found] == ["1", "1", "2", "2", "2", "2"]
    assert browser.text(".head").split("\n")[0] == "iteration ↑"
    browser.go("#/episodes?run=seed-0&text=NOTES&worker=10.0.0.3")
    browser.says("5 of 30 episodes")
    browser.go("#/episodes?run=seed-0&reward_from=0.5&steps_to=2")
    browser.says("0 of 30 episodes")


def test_every_control_has_a_name_and_nothing_is_wider_than_the_page(browser: Browser) -> None:
    nameless = """
      const named = (each) => each.ariaLabel || each.innerText || each.title || (each.labels && each.labels.length);
      const all = document.querySelectorAll('a[href], button, input, select, [role=img], [tabindex="0"]');
      const images = [...document.querySelectorAll('img')].filter((each) => !each.hasAttribute('alt'));
      return [...all].filter((each) => !named(each)).concat(images).map((each) => each.outerHTML.slice(0, 120));
    """
    for address in PLACES:
        browser.go(address)
        browser.wait("document.querySelector('h1') !== null")
        assert browser.page.run(nameless) == [], address
        assert browser.page.run("return document.documentElement.scrollWidth <= innerWidth"), address


@pytest.mark.nightly
def test_names_without_end_and_a_run_without_an_iteration_have_their_place(
    chromium_is_installed: None, tmp_path: Path
) -> None:
    named, begun = make_run(tmp_path / "named", iterations=1), make_run(tmp_path / "begun", iterations=1)
    parquet.write(named / "trajectories" / "000001.parquet", [episode(1, 0, True, words="\u202e" + "w" * 300)])
    append(named / "metrics.jsonl", {"iteration": 1, "success_rate": 1.0, "w" * 300: 1.0})
    for each in ("metrics.jsonl", "trajectories/000000.parquet"):
        (begun / each).unlink()
    with served([named]) as viewer:
        browser = Browser(viewer.url, 420, 860)
        there = {
            "#/runs": ".charts .chart:not(.waits)",
            "#/events": ".events td",
            "#/episodes": ".item",
            "#/episode/named/t1.0": ".facts",
            "#/tasks": ".tasks a",
            "#/compare/named?keys=t1.0,t0.1": ".strip + .strip",
        }
        for address, shown in there.items():
            browser.go(address)
            browser.wait("document.querySelector(arguments[0]) !== null", shown)
            assert browser.page.run("return document.documentElement.scrollWidth <= innerWidth"), address
        browser.close()
    with served([begun]) as viewer:
        browser = Browser(viewer.url)
        browser.says("No iteration is finished yet")
        browser.go("#/tasks")
        browser.says("No training episode has landed yet")
        browser.go("#/workers")
        browser.says("No worker data yet")
        browser.close()


@pytest.mark.nightly
def test_one_value_without_measure_has_an_axis_and_a_pointer_finds_the_point_that_is_nearest(
    chromium_is_installed: None, tmp_path: Path
) -> None:
    huge, long = make_run(tmp_path / "huge", iterations=1), make_run(tmp_path / "long", iterations=1)
    for each in (huge, long):
        (each / "metrics.jsonl").unlink()
    append(huge / "metrics.jsonl", {"iteration": 0, "reward_mean": 1e17, "success_rate": 0.5})
    lines = [{"iteration": number, "success_rate": number / 1000} for number in range(1000)]
    (long / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with served([huge]) as viewer:
        browser = Browser(viewer.url)
        browser.wait("document.querySelectorAll('.chart:not(.waits)').length === 2")
        outside = "[...document.querySelectorAll('.tick')].filter((each) => each.getBBox().x < 0)"
        assert browser.page.run(f"return {outside}.map((each) => each.textContent)") == []
        assert "1e17" in browser.text(".chart + .chart") and "1.00e+17" in browser.text(".tiles")
        browser.close()
    with served([long]) as viewer:
        browser = Browser(viewer.url)
        browser.wait("document.querySelector('.catch') !== null")
        for share in (0.1, 0.123, 0.5001, 0.9):
            browser.page.run(
                "const plot = document.querySelector('.catch'), box = plot.getBoundingClientRect();"
                "plot.dispatchEvent(new MouseEvent('mousemove', {clientX: box.left + arguments[0] * box.width}))",
                share,
            )
            assert " 0." in browser.text("#tip"), share
        browser.close()


@pytest.mark.nightly
def test_measurements_alone_show_their_rewards_and_lead_to_their_episodes(
    chromium_is_installed: None, tmp_path: Path
) -> None:
    """In an environment that tells no success; nothing was trained in this folder."""
    folder = make_run(tmp_path / "run", iterations=1)
    (folder / "metrics.jsonl").unlink()
    (folder / "evaluation" / "000007").mkdir(parents=True)
    trained = folder / "trajectories" / "000000.parquet"
    measures = [
        replace(one, ticket=replace(one.ticket, purpose="measure", policy_version=7)) for one in parquet.read(trained)
    ]
    parquet.write(folder / "evaluation" / "000007" / "000000.parquet", measures)
    trained.unlink()
    measured = {"checkpoint": 7, "iteration": 0, "purpose": "measure", "success_rate": None, "reward_mean": -20.0}
    append(folder / "evaluation.jsonl", measured)
    with served([folder]) as viewer:
        browser = Browser(viewer.url)
        browser.says("mean reward on the test tasks")
        browser.click(".catch")
        browser.says("6 of 6 episodes")
        browser.close()


@pytest.mark.nightly
def test_a_tap_that_types_is_drawn_where_it_touched(chromium_is_installed: None, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    one = episode(1, 0, True, steps=1)
    typed = replace(one.steps[0], action={"type": "type_at", "x": 0.25, "y": 0.75, "text": "hello"})
    parquet.write(folder / "trajectories" / "000001.parquet", [replace(one, steps=[typed])])
    with served([folder]) as viewer:
        browser = Browser(viewer.url)
        browser.go("#/episode/run/t1.0")
        place = browser.wait("document.querySelector('.stage .touch')?.getAttribute('style')")
        assert "left: 25%" in place and "top: 75%" in place
        browser.close()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_axe_finds_nothing_that_shuts_anybody_out(browser: Browser, scheme: str) -> None:
    axe = files("axe_core_python").joinpath("axe.min.js").read_text()
    browser.page.run(f"if (!window.axe) {{ {axe} }}")
    browser.emulate("prefers-color-scheme", scheme)
    serious = "axe.run().then((found) => found.violations.map((one) => [one.impact, one.id, one.nodes[0].html]))"
    for address in PLACES:
        browser.go(address)
        browser.wait("document.querySelector('h1') !== null")
        assert browser.page.run(f"return {serious}") == [], address
    browser.page.run("document.getElementById('main').append(document.createElement('img'))")
    assert browser.page.run(f"return {serious}")[0][1] == "image-alt", "axe finds what is there"


@pytest.mark.nightly
def test_nothing_that_a_run_says_becomes_markup(chromium_is_installed: None, tmp_path: Path) -> None:
    """The known payloads and generated ones, in every text that a worker, an agent or a file may hold."""
    folder = make_run(tmp_path / "hostile", iterations=1)
    texts = [*HOSTILE, *GENERATED]
    parquet.write(
        folder / "trajectories" / "000001.parquet",
        [episode(1, k, False, words=f"{k} {text}") for k, text in enumerate(texts)],
    )
    for text in texts:
        append(folder / "events.jsonl", {"time": 1.8e9, "event": "worker_lost", "worker": text, "reason": text})
    spent = {text: {"step": 1.0, text: 1.0} for text in texts}
    line = {
        "iteration": 1,
        "time": 1.8e9 + 60,
        "iteration_s": 30,
        "slot_seconds_by_worker": spent,
        **dict.fromkeys(texts, 1.0),
    }
    append(folder / "metrics.jsonl", line)
    made = "#main script, #main iframe, #main object, #main a:not([href^='#'])"
    handlers = (
        "[...document.querySelectorAll('*')].filter((e) => [...e.attributes].some((a) => a.name.startsWith('on')))"
    )
    found = f'return [document.querySelectorAll("{made}").length, {handlers}.length, window.hit ?? 0]'
    places = ["#/runs", "#/episodes", "#/tasks", "#/workers", "#/events"]
    read = "document.querySelector('h1, .note') !== null && !document.body.innerText.includes('Reading the episode')"
    with served([folder]) as viewer:
        for address in (viewer.url, write_report(ViewedRun(folder)).as_uri()):
            browser = Browser(address)
            browser.page.run("window.alert = () => { window.hit = 1; }")
            for place in [*places, *(f"#/episode/hostile/t1.{k}" for k in range(0, len(texts), 6))]:
                browser.go(place)
                browser.wait(read)
                assert browser.page.run(found) == [0, 0, 0], place
            browser.close()


def test_a_start_is_no_time_in_episodes(chromium_is_installed: None, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    spent = {"booting": {"boot": 30.0, "reset": 4.0, "step": 4.0, "policy": 2.0}}
    line = {"iteration": 1, "time": 1.8e9 + 60, "iteration_s": 30, "slot_seconds_by_worker": spent}
    append(folder / "metrics.jsonl", line)
    with served([folder]) as viewer:
        browser = Browser(viewer.url)
        browser.go("#/workers")
        browser.says("booting")
        row = "[...document.querySelectorAll('tbody tr')].find((e) => e.innerText.startsWith('booting'))"
        assert browser.page.run(f"return {row}.children[2].innerText") == "25 %"
        browser.close()


def test_a_collection_beside_an_update_takes_of_the_iteration_what_is_left(
    chromium_is_installed: None, tmp_path: Path
) -> None:
    """``ahead=1``: 20 s of collection and 58 s of the update were drawn as 78 s, of an iteration that took 60 s."""
    folder = make_run(tmp_path / "run", iterations=1)
    line = {"iteration": 0, "iteration_s": 60.0, "collect_s": 20.0, "push_s": 0.5, "update_s": 58.0}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    with served([folder]) as viewer:
        browser = Browser(viewer.url)
        browser.wait("document.querySelector('.catch') !== null")
        browser.page.run("document.querySelector('.catch').dispatchEvent(new MouseEvent('mousemove'))")
        browser.says("episodes 1.5 s\npush 0.5 s\nupdate 58 s\nother 0 s", "body")
        browser.close()


def test_a_new_episode_appears_by_itself(chromium_is_installed: None, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    with served([folder]) as viewer:
        browser = Browser(viewer.url)
        browser.go("#/episodes")
        browser.says("6 of 6 episodes")
        one = episode(1, 4, True)
        landing = folder / "trajectories" / ".landing" / "000001" / "000001-00004.episode"
        landing.parent.mkdir(parents=True)
        episode_file.write(landing, one)
        append(folder / "events.jsonl", landed(one, 1.9e9))
        browser.says("7 of 7 episodes, 1 successful")
        browser.close()


@pytest.mark.nightly
def test_what_comes_later_can_be_chosen_and_disturbs_nobody(chromium_is_installed: None, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    with served([folder]) as viewer:
        browser = Browser(viewer.url)
        browser.go("#/episodes")
        browser.says("6 of 6 episodes")
        newcomer = replace(episode(1, 4, True), worker="10.0.0.9")
        landing = folder / "trajectories" / ".landing" / "000001" / "000001-00004.episode"
        landing.parent.mkdir(parents=True)
        episode_file.write(landing, newcomer)
        append(folder / "events.jsonl", landed(newcomer, 1.9e9))
        browser.says("7 of 7 episodes")
        browser.choose("#f-worker", "10.0.0.9")
        browser.says("1 of 7 episodes")
        browser.go("#/tasks")
        browser.page.run("document.querySelector('h1').dataset.same = 'yes'")
        episode_file.write(landing.with_name("000001-00005.episode"), another := episode(1, 5, True))
        append(folder / "events.jsonl", landed(another, 1.9e9))
        browser.says("4\t50 %\t50 %", ".tasks")
        assert browser.page.run("return document.querySelector('h1').dataset.same"), "only the rows are drawn anew"
        browser.close()


def test_a_bundle_works_without_any_server(chromium_is_installed: None, folders: list[Path], tmp_path: Path) -> None:
    browser = Browser(write_bundle(folders, tmp_path / "runs.html").as_uri())
    browser.says("3 runs")
    browser.go("#/episodes?run=seed-1&outcome=success")
    browser.says("of 30 episodes")
    browser.go("#/episode/seed-0/t3.0")
    browser.says("digirl-dist view computes them")
    browser.wait("document.querySelector('img.shot').naturalWidth === 108")
    browser.click("#toggle-changes")
    browser.says("% of the screen changed")
    browser.go("#/workers")
    browser.says("loses the largest share")
    browser.close()
