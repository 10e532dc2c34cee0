"""What installations heed of a machine's configuration of pip and uv, and in which order indexes count for uv."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from digirl_dist.worker_program.pip_configuration import environment, indexes_for_uv


def test_where_packages_come_from_counts_and_where_they_go_does_not(tmp_path: Path) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "pip.conf").write_text(
        "[global]\nindex_url = https://a/simple\nextra-index-url =\n  https://b\n  https://c\nuser = true\n"
        "[install]\ntarget = /x\nrequire-hashes = 1\nindex-url = https://d/%(simple)s\n[freeze]\ntimeout = 1\n"
    )
    given = {
        "XDG_CONFIG_HOME": str(tmp_path),
        "PIP_CERT": "/ca",
        "PIP_TARGET": "/y",
        "PIP_CONSTRAINT": "/z",
        "LANG": "C",
    }
    uv = {"UV_INDEX_URL": "https://u", "UV_TARGET": "/t", "UV_REQUIRE_HASHES": "1", "UV_INDEX_OURS_PASSWORD": "p"}
    found = environment({**given, **uv, "PYTHONPATH": "/p", "PIP_PROXY": "http://p", "XDG_CONFIG_DIRS": "/none"})
    assert found == {
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_CONFIG_DIRS": "/none",
        "LANG": "C",
        "PIP_CERT": "/ca",
        "PIP_PROXY": "http://p",
        "PIP_INDEX_URL": "https://d/%(simple)s",
        "PIP_EXTRA_INDEX_URL": "\nhttps://b\nhttps://c",
        "PIP_CONFIG_FILE": os.devnull,
        "UV_INDEX_URL": "https://u",
        "UV_INDEX_OURS_PASSWORD": "p",
    }


def test_a_named_file_counts_last_and_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    named = tmp_path / "own.conf"
    named.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    alone = {"XDG_CONFIG_HOME": str(tmp_path), "PIP_CONFIG_FILE": str(named)}
    assert environment(alone)["PIP_NO_INDEX"] == "true" and environment(alone)["PIP_FIND_LINKS"] == "/wheels"
    assert "PIP_NO_INDEX" not in environment({**alone, "PIP_CONFIG_FILE": os.devnull})
    named.write_text("index-url = https://a\n")
    with pytest.raises(ValueError, match=f"{named} cannot be read"):
        environment(alone)


@pytest.mark.parametrize(
    ("words", "for_uv"),
    [
        ("--pre --retries 3", "--pre --retries 3"),
        (
            "--extra-index-url https://b --extra-index-url=https://c",
            "--extra-index-url https://b --extra-index-url https://c",
        ),
        ("--index-url https://a --extra-index-url https://b", "--extra-index-url https://a --index-url https://b"),
        (
            "-i https://pypi.org/simple --extra-index-url https://b",
            "--extra-index-url https://b --index-url https://pypi.org/simple",
        ),
        ("-ihttps://a x", "x --index-url https://a"),
    ],
)
def test_indexes_count_in_their_order_and_the_public_one_last(words: str, for_uv: str) -> None:
    assert indexes_for_uv(words.split()) == for_uv.split()
