"""The report page: which episodes it holds, what they cost, and that only screenshots are shown."""

from __future__ import annotations

import base64
import io
import json
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from image_files import encoded
from PIL import Image
from small_run import episode, make_run

from digirl_dist.report.bundle import write_report
from digirl_dist.report.picture import embed
from digirl_dist.report.viewed import ViewedRun, caption
from digirl_dist.storage import parquet
from digirl_dist.trajectory import Observation

TAP = {"type": "tap", "x": 0.25, "y": 0.5}


def report(folder: Path) -> dict[str, Any]:
    """What the page of a run holds."""
    page = write_report(ViewedRun(folder)).read_text()
    data = page.split('id="bundle">')[1].split("</script>")[0]
    found: dict[str, Any] = json.loads(data)[folder.name]
    return found


def screenshot(size: tuple[int, int] = (90, 160), kind: str = "PNG") -> bytes:
    return encoded(Image.effect_noise(size, 80).convert("RGB"), kind)


def test_a_report_has_twelve_episodes_of_the_newest_iteration_half_of_them_successes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    newest = folder / "trajectories" / "000001.parquet"
    for successes, expected in ((20, 6), (2, 2), (29, 11)):
        parquet.write(newest, [episode(1, number, number < successes) for number in range(30)])
        found = report(folder)
        won = [int(key.removeprefix("t1.")) < successes for key in found["episode"]]
        assert (len(won), sum(won)) == (12, expected)
        assert len(found["rows"]["columns"]["iteration"]) == 36 and found["images"].keys() == found["episode"].keys()


def test_a_run_without_an_episode_and_one_whose_newest_file_is_torn_have_a_report(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=2)
    (folder / "trajectories" / "000001.parquet").write_bytes(b"PAR1 torn")
    found = report(folder)
    assert "000001.parquet is not a trajectory file" in found["run"]["state"]["notes"][0]
    assert set(found["episode"]) == {f"t0.{number}" for number in range(6)}
    (folder / "trajectories" / "000000.parquet").unlink()
    (folder / "metrics.jsonl").unlink()
    assert report(folder)["episode"] == {} and not list(folder.glob("*.part"))


@pytest.mark.nightly
@pytest.mark.component
def test_thousands_of_iterations_and_twelve_large_episodes_cost_what_is_shown(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    lines = [{"iteration": number, "loss": 1.0, "episodes_by_worker": {"w": 3}} for number in range(5000)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    large = [
        replace(episode(1, number, number % 2 == 0), final_observation=Observation("", os.urandom(1 << 20)))
        for number in range(120)
    ]
    parquet.write(folder / "trajectories" / "000001.parquet", large)
    tracemalloc.start()
    try:
        assert write_report(ViewedRun(folder)).stat().st_size < 1_000_000
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.component
def test_large_screenshots_are_made_small() -> None:
    large = screenshot((1080, 2400))
    shown = embed(large)
    with Image.open(io.BytesIO(base64.b64decode(shown.removeprefix("data:image/jpeg;base64,")))) as small:
        assert small.size == (216, 480) and len(shown) < 60_000 < len(large)


@pytest.mark.parametrize("image", [b"", b"<svg onload='alert(1)'/>", screenshot()[:300], screenshot(kind="GIF")])
def test_what_is_no_screenshot_is_not_embedded(image: bytes) -> None:
    assert embed(image) == ""


def test_a_screenshot_of_absurd_size_is_not_decoded() -> None:
    assert embed(encoded(Image.new("1", (5_000, 4_000)))) == ""


def test_captions_say_the_action() -> None:
    assert caption(TAP) == "tap 0.25, 0.50"
    assert caption({"type": "home"}) == "home"
    assert caption(3) == "action 3"
    assert caption({"type": "tap", "x": 7}) == 'action {"type": "tap", "x": 7}'
