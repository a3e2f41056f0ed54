"""Settings are refused by name, and results appear whole or not at all."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from prodm.errors import ProdmError
from prodm.runs import (
    fill,
    hash_files,
    new_folder,
    read_toml,
    replacing,
    write_json,
    write_run_json,
)


@dataclass(frozen=True)
class Optimiser:
    learning_rate: float = 1e-3
    betas: tuple[float, ...] = (0.9, 0.999)
    kind: Literal["adam", "sgd"] = "adam"
    decay: float | None = None


@dataclass(frozen=True)
class Settings:
    batch_size: int
    name: str = "compact"
    optimiser: Optimiser = field(default_factory=Optimiser)


def test_tables_fill_nested_settings() -> None:
    values = {"batch_size": 8, "optimiser": {"learning_rate": 1, "betas": [0.5, 0.9]}}
    assert fill(Settings, values) == Settings(8, "compact", Optimiser(1.0, (0.5, 0.9)))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"bach_size": 8}, "settings has no key 'bach_size'; did you mean 'batch_size'"),
        (
            {"batch_size": 8, "optimiser": {"learning_rat": 1.0}},
            "settings.optimiser has no key 'learning_rat'; did you mean 'learning_rate'",
        ),
        ({"batch_size": "eight"}, "settings.batch_size must be of type int, got 'eight'"),
        ({"batch_size": True}, "settings.batch_size must be of type int, got True"),
        (
            {"batch_size": 8, "optimiser": {"kind": "lion"}},
            "settings.optimiser.kind must be one of 'adam', 'sgd', got 'lion'",
        ),
        (
            {"batch_size": 8, "optimiser": {"decay": "much"}},
            "settings.optimiser.decay must be of type float or NoneType, got 'much'",
        ),
        ({}, "batch_size"),
    ],
)
def test_wrong_settings_are_refused_by_name(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ProdmError, match=sentence):
        fill(Settings, values)


def test_broken_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("batch_size = = 3")
    with pytest.raises(ProdmError, match="is not valid TOML"):
        read_toml(path)
    with pytest.raises(ProdmError, match="there is no settings file"):
        read_toml(tmp_path / "none.toml")


def test_a_failed_write_leaves_the_old_file_and_no_debris(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_replacement_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"

    def write_half() -> None:
        with replacing(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_appears_only_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"
    with new_folder(target) as folder:
        (folder / "a").write_text("new")
        assert not target.exists()
    assert (target / "a").read_text() == "new"


def test_an_existing_result_is_kept_unless_told_otherwise(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with new_folder(target) as folder:
        (folder / "a").write_text("old")
    with pytest.raises(ProdmError, match="--overwrite"), new_folder(target):
        pass

    def fail_while_replacing() -> None:
        with new_folder(target, overwrite=True) as folder:
            (folder / "a").write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail_while_replacing()
    assert (target / "a").read_text() == "old"
    with new_folder(target, overwrite=True) as folder:
        (folder / "b").write_text("new")
    assert [path.name for path in target.iterdir()] == ["b"]
    assert list(tmp_path.iterdir()) == [target]


def test_run_json_says_what_made_a_folder(tmp_path: Path) -> None:
    source = tmp_path / "scan"
    source.write_bytes(b"voxels")
    write_run_json(tmp_path, {"seed": 3}, {"scan": hash_files([source])})
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["settings"] == {"seed": 3}
    assert record["inputs_sha256"]["scan"] == hash_files([source])
    assert record["versions"]["numpy"]


def test_the_hash_sees_where_one_file_ends_and_the_next_begins(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    for name, content in zip(names, (b"ab", b"c", b"a", b"bc"), strict=True):
        (tmp_path / name).write_bytes(content)
    a, b, c, d = (tmp_path / name for name in names)
    assert hash_files([a, b]) != hash_files([c, d])
