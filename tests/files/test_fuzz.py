"""Hostile input: always a clean error or a volume, never anything else, nothing left behind."""

import gc
import os
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import nrrd
import numpy as np
import pydicom
import pytest
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
)

from prodm.errors import ProdmError
from prodm.files import parsing
from prodm.files.masks import read_mask
from prodm.files.nifti import write_nifti, write_nifti_mask
from prodm.files.scans import find_scans, read_scan
from prodm.volume import Grid, Volume

WriteSeries = Callable[..., list[Path]]
GRID = Grid((3, 40, 40), (3.0, 0.5, 0.5))
HU = np.random.default_rng(5).integers(-1000, 1500, GRID.shape).astype(np.int16)


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Content after one of the accidents that happen to files."""
    array = bytearray(content)
    kind = rng.integers(6)
    start = int(rng.integers(len(array)))
    if kind == 0:  # cut short
        return bytes(array[:start])
    if kind == 1:  # flipped bytes, anywhere
        for place in rng.integers(len(array), size=int(rng.integers(1, 30))):
            array[place] ^= int(rng.integers(1, 256))
    elif kind == 2:  # flipped bytes in the header
        for place in rng.integers(min(len(array), 1200), size=int(rng.integers(1, 8))):
            array[place] ^= int(rng.integers(1, 256))
    elif kind == 3:  # a wrong length
        array[start : start + 4] = rng.choice([b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(4)])
    elif kind == 4:  # a piece lost
        del array[start : start + int(rng.integers(1, 200))]
    else:  # a piece twice
        array[start:start] = array[start : start + int(rng.integers(1, 200))]
    return bytes(array)


def make_dicom(folder: Path, write_ct_series: WriteSeries, syntax: pydicom.uid.UID | None) -> Path:
    for path in write_ct_series(folder, HU):
        if syntax is not None:
            dataset = pydicom.dcmread(path)
            if syntax == DeflatedExplicitVRLittleEndian:
                dataset.file_meta.TransferSyntaxUID = syntax
            else:
                dataset.compress(syntax)
            dataset.save_as(path)
    return folder


def make_lossless_jpeg(folder: Path, write_ct_series: WriteSeries) -> Path:
    import gdcm

    for path in write_ct_series(folder, HU):
        reader = gdcm.ImageReader()
        reader.SetFileName(str(path))
        reader.Read()
        change = gdcm.ImageChangeTransferSyntax()
        kind = gdcm.TransferSyntax.JPEGLosslessProcess14_1
        change.SetTransferSyntax(gdcm.TransferSyntax(kind))
        change.SetInput(reader.GetImage())
        change.Change()
        writer = gdcm.ImageWriter()
        writer.SetFileName(str(path))
        writer.SetFile(reader.GetFile())
        writer.SetImage(change.GetOutput())
        assert writer.Write()
    return folder


SYNTAXES = {
    "plain": None,
    "deflated": DeflatedExplicitVRLittleEndian,
    "rle": RLELossless,
    "jpeg-ls": JPEGLSLossless,
    "jpeg 2000": JPEG2000Lossless,
}


def check_survives(victim: Path, target: Path, seed: int, rounds: int) -> int:
    """Damage ``victim`` again and again and read ``target``; return how often it was refused."""
    content = victim.read_bytes()
    rng = np.random.default_rng(seed)
    before, refused = open_files(), 0
    for _ in range(rounds):
        victim.write_bytes(damaged(content, rng))
        try:
            volume = read_scan(target).volume
            assert np.isfinite(volume.hu).all()
        except ProdmError:
            refused += 1
    assert open_files() <= before
    victim.write_bytes(content)
    return refused


ROUNDS = int(os.environ.get("PRODM_FUZZ_ROUNDS", "40"))


@pytest.mark.parametrize("name", [*SYNTAXES, "jpeg lossless"])
def test_damaged_dicom_gives_a_clean_error(
    tmp_path: Path, write_ct_series: WriteSeries, name: str
) -> None:
    if name in SYNTAXES:
        folder = make_dicom(tmp_path / "s", write_ct_series, SYNTAXES[name])
    else:
        folder = make_lossless_jpeg(tmp_path / "s", write_ct_series)
    victim = sorted(folder.iterdir())[1]
    assert check_survives(victim, folder, seed=len(name), rounds=ROUNDS) > 0
    check_survives(victim, victim, seed=99, rounds=ROUNDS)


@pytest.mark.parametrize("name", ["s.nii", "s.nii.gz", "s.nrrd", "s.zip"])
def test_damaged_files_of_other_kinds_give_a_clean_error(
    tmp_path: Path, write_ct_series: WriteSeries, name: str
) -> None:
    path = tmp_path / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in write_ct_series(tmp_path / "s", HU):
                archive.write(file, file.name)
    elif name.endswith(".nrrd"):
        header = {"space": "LPS", "space directions": np.eye(3), "space origin": np.zeros(3)}
        nrrd.write(str(path), HU.transpose(2, 1, 0), header)
    else:
        write_nifti(path, Volume(HU, GRID))
    assert check_survives(path, path, seed=len(name), rounds=2 * ROUNDS) > 0


def test_damaged_masks_give_a_clean_error(tmp_path: Path) -> None:
    path = tmp_path / "m.nii.gz"
    write_nifti_mask(path, HU > 500, GRID)
    content, rng = path.read_bytes(), np.random.default_rng(8)
    before = open_files()
    for _ in range(ROUNDS):
        path.write_bytes(damaged(content, rng))
        try:
            assert read_mask(path, GRID).shape == GRID.shape
        except ProdmError:
            continue
    assert open_files() <= before


@pytest.mark.parametrize("name", ["a", "a.dcm", "a.nii", "a.nii.gz", "a.nrrd", "a.nhdr", "a.zip"])
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0", id="zero"),
        pytest.param(b"PK", id="PK"),
        pytest.param(b"PK\x03\x04", id="zip"),
        pytest.param(b"NRRD0004\n", id="first line of NRRD"),
        pytest.param(b"NRRD", id="NRRD"),
        pytest.param(b"\x1f\x8b\x08\0", id="gzip"),
        pytest.param(bytes(128) + b"DICM", id="DICM"),
        pytest.param(b"\x08\0\x05\0CS\x0a\0ISO_IR 100", id="bare element"),
        pytest.param(bytes(5000), id="zeros"),
        pytest.param(b"\xff" * 5000, id="ones"),
    ],
)
def test_scraps_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ProdmError):
        read_scan(tmp_path / name)
    with pytest.raises(ProdmError):
        read_mask(tmp_path / name, GRID)
    with pytest.raises(ProdmError):
        read_scan(tmp_path)


def test_ten_thousand_junk_files_are_passed_over_quickly(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path, HU)
    for number in range(10_000):
        (tmp_path / f"{number}.jpg").write_bytes(b"junk %d" % number)
    before = open_files()
    start = time.perf_counter()
    assert read_scan(tmp_path).volume.shape == GRID.shape
    assert time.perf_counter() - start < 10  # a second or so on an idle machine
    assert len(find_scans(tmp_path)) == 1
    assert open_files() <= before


def test_a_deflated_bomb_is_refused(
    tmp_path: Path, write_ct_series: WriteSeries, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_dicom(tmp_path / "s", write_ct_series, DeflatedExplicitVRLittleEndian)
    path = sorted(folder.iterdir())[0]
    content = path.read_bytes()
    meta_end = 144 + int.from_bytes(content[140:144], "little")
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    bomb = packer.compress(bytes(2**25)) + packer.flush()
    path.write_bytes(content[:meta_end] + bomb)
    monkeypatch.setattr(parsing, "MAX_INFLATED_BYTES", 2**22)
    monkeypatch.setattr(parsing, "INFLATION_STEP_BYTES", 2**20)
    tracemalloc.start()
    with pytest.raises(ProdmError, match="unpacks to more than"):
        read_scan(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


@pytest.mark.parametrize("suffix", [".nii.gz", ".nrrd"])
def test_a_packed_bomb_is_not_unpacked(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"s{suffix}"
    flat = Volume(np.full((2, 8, 8), -5, np.int16), Grid((2, 8, 8), (1, 1, 1)))
    if suffix == ".nrrd":
        header = {"space": "LPS", "space directions": np.eye(3), "space origin": np.zeros(3)}
        nrrd.write(str(path), np.zeros((8, 8, 2**18), np.int16), header)
        path.write_bytes(path.read_bytes().replace(b"sizes: 8 8 262144", b"sizes: 8 8 2"))
    else:
        write_nifti(tmp_path / "s.nii", flat)
        content = (tmp_path / "s.nii").read_bytes() + bytes(2**25)
        import gzip

        path.write_bytes(gzip.compress(content))
    tracemalloc.start()
    assert read_scan(path).volume.shape == (2, 8, 8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23


def test_an_unreadable_file_is_named(
    tmp_path: Path, write_ct_series: WriteSeries, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_ct_series(tmp_path, HU)
    really_open = Path.open

    def refuse(self: Path, *args: object, **kwargs: object) -> object:
        if self == files[1]:
            raise PermissionError(13, "Permission denied", str(self))
        return really_open(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    for target in (tmp_path, files[1]):
        with pytest.raises(ProdmError, match=rf"cannot read .*{files[1].name}: Permission denied"):
            read_scan(target)


def test_an_unreadable_folder_is_named(
    tmp_path: Path, write_ct_series: WriteSeries, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ct_series(tmp_path / "s", HU)
    (tmp_path / "locked").mkdir()
    really_scan = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return really_scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ProdmError, match=r"cannot read the folder .*locked: Permission denied"):
        read_scan(tmp_path)


def test_pipes_broken_links_and_folders_named_like_images_do_no_harm(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path, HU)
    os.mkfifo(tmp_path / "pipe.dcm")
    (tmp_path / "gone.dcm").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.dcm").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path)
    assert read_scan(tmp_path).volume.shape == GRID.shape
    assert len(find_scans(tmp_path)) == 1
    with pytest.raises(ProdmError, match="neither a file nor a folder"):
        read_scan(tmp_path / "pipe.dcm")  # opening a pipe would wait for ever


def test_deep_nesting_is_refused(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    path = write_ct_series(tmp_path, HU)[0]
    content = path.read_bytes()
    place = content.index(b"\x28\x00\x02\x00")  # before SamplesPerPixel
    opened = b"\x20\x00\x11\x92SQ\0\0\xff\xff\xff\xff\xfe\xff\x00\xe0\xff\xff\xff\xff" * 20_000
    path.write_bytes(content[:place] + opened + content[place:])
    with pytest.raises(ProdmError):
        read_scan(path)


def test_reading_many_times_leaves_no_memory(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    write_ct_series(tmp_path, HU)
    read_scan(tmp_path)
    tracemalloc.start()
    read_scan(tmp_path)
    gc.collect()
    first = tracemalloc.get_traced_memory()[0]
    for _ in range(10):
        read_scan(tmp_path)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - first
    tracemalloc.stop()
    assert grown < 100_000
