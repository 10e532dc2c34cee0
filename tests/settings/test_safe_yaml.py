"""Aliases that stand for too much are refused in no time; those that people write are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from digirl_dist.errors import SettingsError
from digirl_dist.settings import configuration
from digirl_dist.settings.safe_yaml import load_yaml

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


def test_a_few_aliases_are_fine() -> None:
    text = "base: &base {x: 0.5, y: 0.5}\nfirst: {<<: *base, y: 1}\nsecond: *base"
    assert load_yaml(text, "f.yaml")["first"] == {"x": 0.5, "y": 1}
    assert load_yaml("", "f.yaml") is None
    assert load_yaml("a & b: 3 * 4", "f.yaml") == {"a & b": "3 * 4"}
    many = "\n".join(["- &one {x: 1}", "- *one", *["- {id: go, params: {a: 1}}"] * 5000])
    assert len(load_yaml(many, "f.yaml")) == 5002, "values that no alias stands for count as well"
    nested = "x: {deep: &own {<<: &base {a: 1, b: 1}, a: 2}}\nfirst: {<<: *own, a: 3}\non: {on: 1}"
    assert load_yaml(nested, "f.yaml")["first"] == {"a": 3, "b": 1}, "what is merged may be given again"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LAUGHS, "aliases in f.yaml unfold"),
        ("a: &a [*a]", "aliases in f.yaml unfold"),
        (f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 20)}]", "aliases in f.yaml unfold"),
        ("[" * 100_000, "f.yaml nests deeper than 100 levels"),
        ("{a: [" * 100_000, "f.yaml nests deeper than 100 levels"),
        ("- " * 200_000, "f.yaml nests deeper than 100 levels"),
        ("? " * 200_000, "f.yaml nests deeper than 100 levels"),
        ("".join(f"&a{n} [" for n in range(10_000)) + "*a1", "f.yaml nests deeper than 100 levels"),
        ("[&a x, *b, {y: *a", "f.yaml is not valid"),
        ("train: [a]\ntest: [b]\ntrain: [c]", "f.yaml is not valid: 'train' is given twice, in lines 1 and 3"),
        ('{"jobs": [{"seed": 1, "name": "x", "seed": 1}]}', "'seed' is given twice, in lines 1 and 1"),
        ("2024-13-45", "f.yaml is not valid"),
        ("!!int ''", "f.yaml is not valid"),
        ("? [a]\n: b", "f.yaml is not valid"),
        ("!!python/object/apply:os.system ['true']", "f.yaml is not valid"),
    ],
)
def test_what_is_no_yaml_or_unfolds_is_refused(text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load_yaml(text, "f.yaml")


@pytest.mark.parametrize("text", [LAUGHS, "seed: " + "[" * 5000])
def test_a_configuration_with_such_a_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "host.yaml").write_text(text)
    with pytest.raises(SettingsError):
        configuration.load(str(tmp_path), "host", [])
