"""The files of a folder or a zip, under one face.

A zip is never unpacked to disk: its members are read one at a time. What a zip claims to
hold is checked against limits before anything is unpacked, and Python's reader stops at the
claimed size, so a small file cannot fill the memory.
"""

import os
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from prodm.errors import ProdmError

MAX_MEMBERS = 200_000
MAX_MEMBER_BYTES = 4 * 2**30
MAX_TOTAL_BYTES = 16 * 2**30
BOMB_BYTES = 2**30  # from here on, a ratio that no image reaches is refused
BOMB_RATIO = 200


@dataclass(frozen=True)
class FileSet:
    """Files that can be opened by name, from a folder, a zip, or one file alone."""

    root: Path
    names: tuple[str, ...]  # relative to the root, with forward slashes; sorted
    archive: zipfile.ZipFile | None = None

    def label(self, name: str) -> str:
        """Return what a message calls one of the files."""
        return f"{name} in {self.root}" if self.archive else str(self.path(name))

    def path(self, name: str) -> Path:
        """Return the file on disk: the file itself, or the zip that holds it."""
        return self.root if self.archive or name == "" else self.root / name

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Open one file for reading."""
        try:
            file = self.archive.open(name) if self.archive else self.path(name).open("rb")
        except OSError as error:
            raise ProdmError(f"cannot read {self.label(name)}: {error.strerror}") from error
        except NotImplementedError as error:  # such as Deflate64, which Windows uses for large ones
            raise ProdmError(
                f"cannot unpack {self.label(name)}: its method of packing is not known here; "
                "unpack the zip first"
            ) from error
        except (zipfile.BadZipFile, RuntimeError) as error:
            raise ProdmError(f"cannot unpack {self.label(name)}: the zip is damaged") from error
        with file:
            yield file


@contextmanager
def open_files(path: Path, *, deep: bool = True) -> Iterator[FileSet]:
    """Give the files of a folder, of a zip, or a single file.

    Hidden files, DICOMDIR and the resource files of macOS are left out.

    Args:
        path: the folder, zip or file.
        deep: also take the files in folders below the folder.
    """
    if path.is_dir():
        yield FileSet(path, tuple(sorted(_names_in_folder(path, deep))))
    elif _is_zip(path):
        with _open_zip(path) as archive:
            names = sorted(i.filename for i in archive.infolist() if not i.is_dir())
            yield FileSet(path, tuple(filter(_is_wanted, names)), archive)
    else:
        yield FileSet(path, ("",))


def _is_wanted(name: str) -> bool:
    parts = PurePosixPath(name).parts
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    return not hidden and parts[-1].upper() != "DICOMDIR"


def _names_in_folder(folder: Path, deep: bool) -> Iterator[str]:
    """Relative names of the regular files in a folder."""

    def refuse(error: OSError) -> None:
        raise ProdmError(f"cannot read the folder {error.filename}: {error.strerror}") from error

    for place, subfolders, names in os.walk(folder, onerror=refuse):
        if not deep:
            subfolders.clear()
        subfolders[:] = [name for name in subfolders if _is_wanted(name)]
        for name in names:
            path = Path(place, name)
            if _is_wanted(name) and _is_regular(path):
                yield path.relative_to(folder).as_posix()


def _is_regular(path: Path) -> bool:
    """Whether this is a file with content; a pipe would block, a broken link is nothing."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _is_zip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"PK"
    except FileNotFoundError:
        raise ProdmError(f"there is no file or folder {path}") from None
    except OSError as error:
        raise ProdmError(f"cannot read {path}: {error.strerror}") from error


@contextmanager
def _open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(path)
    except OSError as error:
        raise ProdmError(f"cannot read {path}: {error.strerror}") from error
    except (zipfile.BadZipFile, NotImplementedError, ValueError, UnicodeDecodeError) as error:
        raise ProdmError(f"{path} is not a whole zip; copy or pack it again") from error
    with archive:
        _check_zip(path, archive.infolist())
        yield archive


def _check_zip(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Refuse a zip that is encrypted, lies about its place, or would fill the memory."""
    if len(members) > MAX_MEMBERS:
        raise ProdmError(f"{path} holds {len(members)} files; at most {MAX_MEMBERS} are read")
    for member in members:
        if member.flag_bits & 0x1:
            raise ProdmError(f"{path} is encrypted; unpack it with its password first")
        name = PurePosixPath(member.filename.replace("\\", "/"))
        if name.is_absolute() or ".." in name.parts:
            raise ProdmError(f"{path} holds a file outside its own folder, {member.filename!r}")
        if member.file_size > MAX_MEMBER_BYTES:
            raise ProdmError(
                f"{member.filename!r} in {path} would unpack to "
                f"{member.file_size / 2**30:.1f} GiB; at most {MAX_MEMBER_BYTES // 2**30} are read"
            )
    unpacked = sum(member.file_size for member in members)
    packed = sum(member.compress_size for member in members)
    is_bomb = unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * packed
    if is_bomb or unpacked > MAX_TOTAL_BYTES:
        raise ProdmError(
            f"{path} would unpack to {unpacked / 2**30:.1f} GiB from {packed / 2**20:.1f} MiB, "
            "which no CT series does; unpack it yourself if you trust it"
        )
