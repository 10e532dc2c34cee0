"""``script/release`` refuses what is no release, and tags what is one with a sign-off."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import scripts

pytestmark = pytest.mark.component  # git

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-11-22\n### Added\n- All of it.\n\n## [1.1.0] - 2026-01-01\n"
)


PACKAGE = ["digirl_dist/__init__.py", "digirl_dist/config/host.yaml"]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    return scripts.script("release")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A commit that is ready to be version 1.2.0."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    root = tmp_path / "checkout"
    for folder in ("digirl_dist", "config", "worker"):
        (root / folder).mkdir(parents=True)
    (root / "digirl_dist" / "__init__.py").write_text('__version__ = "1.2.0"\n')
    (root / "config" / "host.yaml").write_text("seed: 0\n")
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    (root / "CITATION.cff").write_text("version: 1.2.0\n")
    git(root, "init", "-q")
    git(root, "config", "user.name", "Ann")
    git(root, "config", "user.email", "ann@example.org")
    commit(root)
    return root


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", root, *words], check=True, capture_output=True, text=True).stdout


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-qm", "all")


def test_a_ready_commit_is_tagged_with_a_sign_off(release: ModuleType, checkout: Path) -> None:
    assert release.refuse_unready(checkout) == "1.2.0"
    release.tag(checkout, "1.2.0")
    assert "Signed-off-by: Ann <ann@example.org>" in git(checkout, "tag", "-n9", "v1.2.0")
    with pytest.raises(release.Refusal, match="v1.2.0 is tagged already; raise __version__"):
        release.refuse_unready(checkout)


@pytest.mark.parametrize(
    ("file", "text", "refusal"),
    [
        ("digirl_dist/__init__.py", '__version__ = "1.2"\n', "no version such as"),
        ("digirl_dist/__init__.py", '__version__ = "1.3.0"\n', r"no heading `## \[1.3.0\]"),
        ("CHANGELOG.md", CHANGELOG.replace(" - 2026-11-22", ""), "no heading"),
        ("CHANGELOG.md", CHANGELOG.replace("- All of it.", ""), "says nothing of 1.2.0"),
        ("CITATION.cff", "version: 1.1.0\n", "CITATION.cff is of another version"),
    ],
)
def test_what_does_not_fit_the_version_is_refused(
    file: str, text: str, refusal: str, release: ModuleType, checkout: Path
) -> None:
    (checkout / file).write_text(text)
    commit(checkout)
    with pytest.raises(release.Refusal, match=refusal):
        release.refuse_unready(checkout)


def test_a_tree_that_is_not_clean_and_a_person_without_a_name_are_refused(release: ModuleType, checkout: Path) -> None:
    (checkout / "left.txt").write_text("")
    with pytest.raises(release.Refusal, match="(?s)not clean.*left.txt"):
        release.refuse_unready(checkout)
    (checkout / "left.txt").unlink()
    git(checkout, "config", "--unset", "user.email")
    with pytest.raises(release.Refusal, match="no user.email for the sign-off"):
        release.refuse_unready(checkout)


@pytest.mark.parametrize(
    ("names", "refusal"),
    [
        (PACKAGE[:1], "lacks digirl_dist/config/host.yaml; see package_data"),
        ([*PACKAGE, "digirl_dist/mine.py"], "holds digirl_dist/mine.py"),
        ([*PACKAGE, "digirl_dist-1.2.0.dist-info/RECORD"], ""),
    ],
)
def test_a_wheel_has_the_files_of_the_package_and_no_others(
    names: list[str], refusal: str, release: ModuleType, checkout: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
        for name in names:
            wheel.writestr(name, "")
    if not refusal:
        release.refuse_incomplete(checkout, tmp_path / "x.whl", "1.2.0")
        return
    with pytest.raises(release.Refusal, match=refusal):
        release.refuse_incomplete(checkout, tmp_path / "x.whl", "1.2.0")


def test_the_citation_is_of_this_version() -> None:
    import digirl_dist

    assert f"\nversion: {digirl_dist.__version__}\n" in (ROOT / "CITATION.cff").read_text()
