"""Settings in, results out: what every command shares with the disk.

Settings are frozen dataclasses that TOML fills; an unknown key is refused with the nearest
valid one. Results appear whole or not at all: files and folders are written under a
temporary name beside their place and renamed at the end. ``run.json`` in each output folder
records what made it.
"""

import dataclasses
import difflib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata, resources
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from prodm.errors import ProdmError

Settings = TypeVar("Settings")
Progress = Callable[[int, int], None]  # called with (done, total) as long work goes on

RECORDED_PACKAGES = ("prodm", "numpy", "scipy", "numba", "pydicom", "zarr", "torch", "monai")


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ProdmError(f"there is no settings file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProdmError(f"cannot read the settings file {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ProdmError(f"{path} is not valid TOML: {error}") from error


def read_settings(path: Path) -> dict[str, Any]:
    """Read a settings file, or one that ships with prodm by its name alone, such as compact."""
    shipped = resources.files("prodm") / "settings" / f"{path.name}.toml"
    if not path.is_file() and len(path.parts) == 1 and shipped.is_file():
        return tomllib.loads(shipped.read_text(encoding="utf-8"))
    return read_toml(path)


def fill(
    settings_type: type[Settings], values: Mapping[str, Any], where: str = "settings"
) -> Settings:
    """Build a settings dataclass from a table; nested tables fill nested dataclasses."""
    hints = get_type_hints(settings_type)
    names = [field.name for field in dataclasses.fields(settings_type)]  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key not in names:
            nearest = difflib.get_close_matches(key, names, n=1, cutoff=0.0)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise ProdmError(f"{where} has no key {key!r}{hint}")
        arguments[key] = _converted(value, hints[key], f"{where}.{key}")
    try:
        return settings_type(**arguments)
    except TypeError as error:
        raise ProdmError(f"{where}: {error}") from error


def _converted(value: Any, hint: Any, where: str) -> Any:  # noqa: ANN401
    """Return a TOML value as the type that a settings field asks for, or refuse it."""
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return fill(hint, value, where)  # type: ignore[arg-type]
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            choices = ", ".join(repr(choice) for choice in get_args(hint))
            raise ProdmError(f"{where} must be one of {choices}, got {value!r}")
        return value
    if isinstance(hint, UnionType):
        allowed = tuple(get_origin(kind) or kind for kind in get_args(hint))
    else:
        allowed = (get_origin(hint) or hint,)
    if tuple in allowed and isinstance(value, list):
        return tuple(value)
    number = isinstance(value, int) and not isinstance(value, bool)
    if float in allowed and number and int not in allowed:
        return float(value)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        names = " or ".join(kind.__name__ for kind in allowed)
        raise ProdmError(f"{where} must be of type {names}, got {value!r}")
    return value


def hash_files(paths: Sequence[Path]) -> str:
    """Return one SHA-256 over the contents of files, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def write_json(path: Path, content: Any) -> None:  # noqa: ANN401
    """Write JSON whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def write_run_json(
    folder: Path, settings: Mapping[str, Any], inputs: Mapping[str, str | None] | None = None
) -> None:
    """Record in ``run.json`` the command, settings, versions, commit and hashes of inputs."""
    versions = {}
    for package in RECORDED_PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    record = {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "settings": dict(settings),
        "inputs_sha256": dict(inputs or {}),
        "versions": versions,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "commit": _commit(),
    }
    write_json(folder / "run.json", record)


def _commit() -> str | None:
    """Commit of the checkout that this package runs from; None when it is installed."""
    here = Path(__file__).resolve().parent
    if not any((parent / ".git").exists() for parent in here.parents):
        return None
    answer = subprocess.run(
        ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"],
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() or None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; it takes the place only if all went well."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give an empty folder beside ``path`` that becomes ``path`` only if all went well.

    An existing result stays untouched until the new one is complete.
    """
    if path.exists() and not overwrite and (not path.is_dir() or any(path.iterdir())):
        raise ProdmError(f"{path} exists already; choose another place or add --overwrite")
    if path.exists() and not path.is_dir():
        raise ProdmError(f"{path} is a file, and a folder is to be written there")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if path.exists():
            old = path.with_name(f".{path.name}.old-{os.getpid()}")
            path.replace(old)
            partial.replace(path)
            shutil.rmtree(old)
        else:
            partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
