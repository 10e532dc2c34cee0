"""The notebook of the examples runs from its first cell to its last, as it is written."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.long(30), pytest.mark.timeout(900)]

NOTEBOOK = Path(__file__).parent.parent / "examples" / "tour.ipynb"


def test_the_tour_runs_and_shows_curves_and_an_episode(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    connection = str(tmp_path / "kernel.json")
    kernel = AsyncKernelManager(transport="ipc", connection_file=connection)  # no port that others could use
    NotebookClient(
        notebook, km=kernel, timeout=600, startup_timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("image/png" in output["data"] for output in shown), "the curves"
    assert any("data:image/png;base64," in output["data"].get("text/html", "") for output in shown), "an episode"
    losses = notebook.cells[-2].outputs[-1]["data"]["text/plain"]
    assert "loss" in losses and (tmp_path / "runs" / "own" / "metrics.jsonl").exists()
