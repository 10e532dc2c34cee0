"""What the server answers, to whom, and what it makes of hostile content."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from process_watch import eventually
from small_run import append, episode, make_run
from starlette.testclient import TestClient

from digirl_dist import Run
from digirl_dist.errors import RunFolderError, SettingsError, TrajectoryError
from digirl_dist.report.bundle import write_bundle, write_report
from digirl_dist.report.picture import screenshot
from digirl_dist.report.viewed import ViewedRun, named
from digirl_dist.report.why import explain
from digirl_dist.serve.door import Door
from digirl_dist.storage import episode_file, parquet
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.user_code.entry_point import load_entry_point
from digirl_dist.viewer.explainer import Explainer
from digirl_dist.viewer.server import Pages, guarded

pytestmark = pytest.mark.component

TOKEN = "a-token"
QUESTION = {"run": "demo", "key": "t1.0"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "demo")


def state(viewed: ViewedRun) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(viewed.news("", "", ""))["state"]
    return found


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    with TestClient(
        guarded(Pages(named([folder])).app(), TOKEN, Door()), base_url="http://127.0.0.1", follow_redirects=False
    ) as asking:
        yield asking


def test_without_the_token_nothing_is_shown(client: TestClient) -> None:
    for path in ("/", "/static/app.js", "/api/runs", "/api/image?run=demo&key=t1.0", "/wrong/", "/api/live"):
        cookie = {"cookie": f"digirl-dist-80={TOKEN}"}
        assert client.get(path, params={"token": TOKEN}, headers=cookie).status_code == 403, path


def test_no_other_port_of_this_machine_gets_the_secret_which_is_in_the_path_alone(client: TestClient) -> None:
    """A browser sends a cookie to each port."""
    for path in ("", "static/app.js", "api/runs"):
        answer = client.get(f"/{TOKEN}/{path}")
        assert answer.status_code == 200 and "set-cookie" not in answer.headers
        assert TOKEN not in answer.text and answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "[::1", "localhost@evil"])
def test_another_name_for_this_machine_is_refused(client: TestClient, host: str) -> None:
    assert client.get(f"/{TOKEN}/", headers={"host": host}).status_code == 421
    assert client.get(f"/{TOKEN}/", headers={"host": "localhost:9999"}).status_code == 200


def test_only_reading_is_possible_and_every_answer_forbids_foreign_content(client: TestClient) -> None:
    assert client.post(f"/{TOKEN}/api/runs").status_code == 405 and client.delete(f"/{TOKEN}/").status_code == 405
    for path in ("/", "/api/runs", "/static/none.js", "/nowhere"):
        headers = client.get(f"/{TOKEN}{path}").headers
        assert (
            headers["content-security-policy"].startswith("default-src 'self';") and headers["x-content-type-options"]
        )


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py", "/static/"]
)
def test_no_file_but_the_pages_own_is_served(client: TestClient, path: str) -> None:
    assert client.get(f"/{TOKEN}{path}").status_code == 404


def test_an_episode_its_picture_and_the_timeline(client: TestClient) -> None:
    while client.get(f"/{TOKEN}/api/rows", params={"run": "demo"}).json()["unread"]:
        pass
    found = client.get(f"/{TOKEN}/api/episode", params=QUESTION).json()
    assert [step["caption"] for step in found["steps"]][1] == "swipe 0.50, 0.75 → 0.50, 0.25"
    picture = client.get(f"/{TOKEN}/api/image", params={**QUESTION, "step": "3"})
    assert picture.headers["content-type"] == "image/png" and screenshot(picture.content) is not None
    assert client.get(f"/{TOKEN}/api/image", params={**QUESTION, "step": "4"}).status_code == 404
    events = client.get(f"/{TOKEN}/api/timeline", params={"run": "demo"}).json()["events"]["lines"]
    lost = [event for event in events if "reason" in event]
    assert lost[0]["event"] == "worker_lost"
    assert client.get(f"/{TOKEN}/api/episode", params={"run": "demo", "key": "t9.9"}).status_code == 404
    assert client.get(f"/{TOKEN}/api/rows", params={"run": "other"}).status_code == 404
    assert client.get(f"/{TOKEN}/api/rows").status_code == 404


def test_a_strangers_run_imports_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_run_py.py").write_text("Mine = 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    explainer = Explainer()
    with pytest.raises(RunFolderError, match="no config"):
        explainer.explain(tmp_path, "t0.0", None)
    assert explainer._pool is not None
    with pytest.raises(SettingsError, match="cannot be imported unless it is installed or on PYTHONPATH"):
        explainer._pool.submit(load_entry_point, "beside_run_py:Mine", "agent.entry_point").result()
    explainer.close()
    assert load_entry_point("beside_run_py:Mine", "agent.entry_point") == 1


def test_a_viewer_that_ends_leaves_no_thread_at_work(folder: Path) -> None:
    """One that reads a file while Python ends would have Arrow abort the process."""
    with TestClient(Pages(named([folder])).app()):
        assert "follow-runs" in [thread.name for thread in threading.enumerate()]
    assert "follow-runs" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("name", ["view", "report", "export", "why"])
def test_a_command_says_what_it_does_before_it_imports_what_takes_long(name: str, folder: Path, tmp_path: Path) -> None:
    words = {
        "view": ["--bundle", str(tmp_path / "runs.html"), str(folder)],
        "report": [str(folder)],
        "export": [str(folder), "--to", "atif", str(tmp_path / "out")],
        "why": [str(tmp_path)],
    }
    script = f"""import sys
from digirl_dist.cli.main import main
from digirl_dist.report import output
class Told(output.Lines):
    def open(self, progress):
        print("heavy:", [name for name in ("pyarrow", "numpy", "torch", "starlette") if name in sys.modules])
output.Lines = Told
main({[name, *words[name]]!r})
print("heavy:", [name for name in ("torch",) if name in sys.modules])"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert set(re.findall("heavy: .*", said.stdout)) == {"heavy: []"}, said.stdout + said.stderr


def test_a_server_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    script = f"""from digirl_dist.viewer.explainer import Explainer
explainer = Explainer()
try:
    explainer.explain({str(tmp_path)!r}, "t0.0", None)
except Exception:
    print(*explainer._pool._processes, flush=True)
input()"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], text=True, **pipes) as server:
        assert server.stdout is not None
        process = psutil.Process(int(server.stdout.readline()))
        server.kill()
    process.wait(120)


def test_explanations_that_have_lost_their_process_get_another_one(tmp_path: Path) -> None:
    explainer = Explainer()
    with pytest.raises(RunFolderError, match="no config"):
        explainer.explain(tmp_path, "t0.0", None)
    pool = explainer._pool
    assert pool is not None
    next(iter(pool._processes.values())).kill()  # while nobody asks
    eventually(lambda: bool(pool._broken), what="the pool's notice of its loss")
    with pytest.raises(RuntimeError, match="has died; is there too little memory"):
        explainer.explain(tmp_path, "t0.0", None)
    with pytest.raises(RunFolderError, match="no config"):
        explainer.explain(tmp_path, "t0.0", None)
    explainer.close()


@pytest.mark.parametrize("image", [None, b"", b"<svg onload='alert(1)'/>", b"<html><script>", b"GIF89a" + bytes(40)])
def test_what_is_no_screenshot_is_not_served(image: bytes | None) -> None:
    assert screenshot(image) is None


def test_figures_that_are_no_numbers_do_not_break_the_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "odd", iterations=1)
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    append(
        folder / "metrics.jsonl",
        {"iteration": 1, "success_rate": float("nan"), "reward_mean": float("inf"), "\ud800": "\ud800", "deep": deep},
    )
    run = ViewedRun(folder)

    def refuse(constant: str) -> None:
        raise AssertionError(f"browsers read no {constant}")

    last = json.loads(run.news("", "", ""), parse_constant=refuse)["figures"]["lines"][-1]
    assert last["success_rate"] is None and last["reward_mean"] is None


def test_a_damaged_file_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=2)
    (folder / "trajectories" / "000001.parquet").write_bytes(b"PAR1 torn")
    (folder / "config.yaml").write_text("emulator: [1, 2\nx: }")
    run = ViewedRun(folder)
    run.follow(everything=True)
    summary = state(run)
    assert summary["episodes"] == 6 and [note.split(" ")[0] for note in summary["notes"]] == [
        "000001.parquet",
        "config.yaml",
    ]


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", "provenance.jsonl"])
def test_who_reads_a_file_that_cannot_be_read_names_it_and_shows_the_others(name: str, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    Status(folder / "status.json").host("learn")
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    told = f"{name} cannot be read: Is a directory; restore it, or move it away"
    if name != "provenance.jsonl":
        viewed = ViewedRun(folder)
        viewed.follow(everything=True)
        (note,) = state(viewed)["notes"]
        assert note.endswith(told) and viewed.rows(0)["count"] == 6
        assert told in write_report(ViewedRun(folder)).read_text()
    if name == "events.jsonl":
        with pytest.warns(UserWarning, match=told):
            assert len(Run(folder).episodes()) == 6
        with pytest.raises(RunFolderError, match=told):
            explain(folder)
    else:
        with pytest.raises(RunFolderError, match=told):
            Run(folder).export("policy", tmp_path / "policy")


def test_an_episode_that_no_table_holds_is_passed_over(tmp_path: Path) -> None:
    """A stranger's: no worker's episode is taken with another seed than its ticket's."""
    folder = make_run(tmp_path / "run", iterations=1)
    (folder / "trajectories" / ".landing" / "000001").mkdir(parents=True)
    for number, change in enumerate(({"seed": 2**64 - 1}, {"iteration": 2**40})):
        one = episode(1, number, True)
        path = folder / "trajectories" / ".landing" / "000001" / f"000001-{number:05d}.episode"
        episode_file.write(path, replace(one, ticket=replace(one.ticket, **change)))
    viewed = ViewedRun(folder)
    viewed.follow(everything=True)
    assert viewed.rows(0)["count"] == 6


def test_a_run_that_is_deleted_and_made_again_while_it_is_viewed(folder: Path, tmp_path: Path) -> None:
    place = shutil.copytree(folder, tmp_path / "run")
    (place / "run.json").write_text('{"run_id": "first"}')
    viewed = ViewedRun(place)
    viewed.follow(everything=True)
    known = viewed.progress()
    shutil.rmtree(place)
    viewed.follow()
    summary = state(viewed)
    assert summary["gone"] and "moved or deleted" in summary["notes"][-1]
    with pytest.raises(TrajectoryError, match="No such file"):
        viewed.episode("t0.0")
    shutil.copytree(folder, place)
    (place / "run.json").write_text('{"run_id": "second"}')
    (place / "trajectories" / "000000.parquet").unlink()
    viewed.follow(everything=True)
    now = viewed.progress()
    assert (known["id"], now["id"]) == ("first", "second") and now["episodes"] == known["episodes"] - 6


def test_a_folder_that_may_not_be_looked_at_for_a_while_ends_no_thread_that_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewed, stat = ViewedRun(make_run(tmp_path / "run", iterations=1)), os.stat

    def refused(path: Any, **more: Any) -> os.stat_result:
        if str(path).endswith("config.yaml"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refused)
        assert viewed.progress()["gone"]
    assert not viewed.progress()["gone"] and viewed.follow() == 0 and len(viewed.index) == 6


def test_an_episode_that_is_refused_while_the_run_is_viewed_leaves_the_others_theirs(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    viewed = ViewedRun(folder)
    viewed.follow(everything=True)
    file = folder / "trajectories" / "000000.parquet"
    kept = [one for one in parquet.read(file) if one.ticket.index != 2]
    parquet.write(file, kept)
    assert [viewed.episode(f"t0.{one.ticket.index}")["id"] for one in kept] == [one.episode_id for one in kept]
    with pytest.raises(TrajectoryError, match="any more"):
        viewed.episode("t0.2")


def test_an_iteration_whose_episodes_were_all_refused_is_no_damaged_file(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=2)
    store = Store(folder / "trajectories")
    store.refuse(store.read(1), "it broke the update")
    viewed = ViewedRun(folder)
    viewed.follow(everything=True)
    assert state(viewed)["notes"] == [] and viewed.rows(0)["count"] == 6
    assert "t0.0" in write_report(viewed).read_text()


def test_runs_of_one_name_are_told_apart_and_every_name_fits_an_address(folder: Path, tmp_path: Path) -> None:
    folders = [shutil.copytree(folder, tmp_path / place) for place in ("a/run", "b/run", "\udcff", "\udcfe")]
    assert list(named(folders)) == ["run", "run~2", "?", "?~2"]


def test_a_file_with_texts_that_are_none_is_named_and_hides_no_other(folder: Path, tmp_path: Path) -> None:
    place = shutil.copytree(folder, tmp_path / "run")
    rows = parquet.to_table(episode(9, 0, True))
    wrong = pa.array([b"\xff"] * rows.num_rows).view(pa.string())
    pq.write_table(
        rows.set_column(rows.schema.get_field_index("task"), "task", wrong),
        place / "trajectories/000009.parquet",
        **parquet.AS_WRITTEN,
    )
    viewed = ViewedRun(place)
    viewed.follow(everything=True)
    assert viewed.rows(0)["count"] == 18 and "000009.parquet" in str(state(viewed)["notes"])


def test_a_bundle_is_one_file_without_addresses_and_its_data_cannot_end_the_script(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", iterations=1)
    words = "</script><script>alert(1)</script><!--"
    parquet.write(folder / "trajectories" / "000001.parquet", [episode(1, 0, False, words=words)])
    page = write_bundle([folder], tmp_path / "runs.html").read_text()
    assert page.count("<script") == 2 and words not in page and "\\u003c/script>" in page
    assert "/static/" not in page.replace("/api/", "") and "default-src 'none'" in page.replace("&#x27;", "'")
    assert write_bundle([folder], tmp_path / "out.zip").stat().st_size > 10_000
    with pytest.raises(SettingsError, match=r"ends in \.html or \.zip"):
        write_bundle([folder], tmp_path / "out.pdf")


@pytest.mark.parametrize("name", ["out.html", "out.zip"])
def test_a_bundle_that_cannot_be_written_leaves_the_one_before(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder, path = make_run(tmp_path / "run", iterations=1), write_bundle([], tmp_path / name)
    before = path.read_bytes()
    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(RunFolderError, match=f"--bundle .*{name} cannot be written: No space left"):
        write_bundle([folder], path)
    assert path.read_bytes() == before and sorted(tmp_path.iterdir()) == sorted([folder, path])
