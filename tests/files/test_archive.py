"""Zips: never unpacked to disk, never trusted."""

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from prodm.errors import ProdmError
from prodm.files import archive
from prodm.files.scans import read_scan

WriteSeries = Callable[..., list[Path]]


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("IM1.dcm", b"secret")
    content = bytearray(path.read_bytes())
    content[6] |= 1  # local header
    content[content.index(b"PK\x01\x02") + 8] |= 1  # central directory
    path.write_bytes(content)
    with pytest.raises(ProdmError, match="is encrypted; unpack it with its password first"):
        read_scan(path)


@pytest.mark.parametrize("name", ["../out.dcm", "/etc/out.dcm", "a/../../out.dcm", "..\\out.dcm"])
def test_a_zip_that_reaches_outside_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, b"x")
    with pytest.raises(ProdmError, match="outside its own folder"):
        read_scan(path)
    assert [file.name for file in tmp_path.iterdir()] == ["s.zip"]


def test_a_zip_bomb_is_refused_unopened(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("IM1.dcm", bytes(128) + b"DICM" + bytes(10_000))
    content = path.read_bytes()
    claimed = struct.pack("<I", 2**31)
    end = content.index(b"PK\x01\x02")
    path.write_bytes(content[: end + 24] + claimed + content[end + 28 :])
    with pytest.raises(ProdmError, match=r"would unpack to 2.0 GiB from 0.0 MiB"):
        read_scan(path)


def test_limits_on_members_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.zip"
    with zipfile.ZipFile(path, "w") as file:
        for number in range(5):
            file.writestr(f"{number}", bytes(100))
    monkeypatch.setattr(archive, "MAX_MEMBERS", 4)
    with pytest.raises(ProdmError, match="holds 5 files; at most 4"):
        read_scan(path)
    monkeypatch.setattr(archive, "MAX_MEMBERS", 10)
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 99)
    with pytest.raises(ProdmError, match="would unpack to"):
        read_scan(path)


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_every_method_of_packing_is_read(
    tmp_path: Path, write_ct_series: WriteSeries, method: int
) -> None:
    files = write_ct_series(tmp_path / "s")
    with zipfile.ZipFile(tmp_path / "s.zip", "w", method) as file:
        for path in files:
            file.write(path, f"DICOM/{path.name}")
        file.writestr("__MACOSX/DICOM/._x.dcm", b"junk")
        file.writestr("DICOM/readme.txt", b"junk")
    assert read_scan(tmp_path / "s.zip").volume.shape == (5, 24, 32)


def test_several_series_in_a_zip_are_listed(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    files = write_ct_series(tmp_path / "s", series=1) + write_ct_series(tmp_path / "s", series=2)
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as file:
        for path in files:
            file.write(path, path.name)
    with pytest.raises(ProdmError, match=r"s.zip holds 2 series"):
        read_scan(tmp_path / "s.zip")
    assert read_scan(tmp_path / "s.zip", "2").description == "Series 2"


def test_a_zip_without_images_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as file:
        file.writestr("readme.txt", "nothing")
    with pytest.raises(ProdmError, match="holds no DICOM image"):
        read_scan(tmp_path / "s.zip")


def test_a_damaged_member_is_named(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    files = write_ct_series(tmp_path / "s")
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as file:
        for path in files:
            file.write(path, path.name)
    content = bytearray((tmp_path / "s.zip").read_bytes())
    content[len(files[0].read_bytes()) // 2] ^= 255  # the checksum no longer fits
    (tmp_path / "s.zip").write_bytes(content)
    with pytest.raises(ProdmError, match=rf"{files[0].name} in .*s.zip"):
        read_scan(tmp_path / "s.zip")


def test_an_unknown_method_of_packing_is_told_from_damage(tmp_path: Path) -> None:
    """Windows packs large folders by Deflate64, method 9, which Python cannot unpack."""
    path = tmp_path / "scan.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("IM1.dcm", bytes(100))
    packed = bytearray(path.read_bytes())
    for header, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        packed[packed.index(header) + offset] = 9
    path.write_bytes(packed)
    with pytest.raises(ProdmError, match="method of packing is not known here; unpack the zip"):
        read_scan(path)
