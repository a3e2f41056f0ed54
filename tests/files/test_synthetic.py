"""A made-up scan becomes a valid DICOM series that reads back unchanged."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prodm.errors import ProdmError
from prodm.files.scans import read_scan
from prodm.files.synthetic import write_ct_series
from prodm.volume import Grid, Volume


def volume() -> Volume:
    hu = np.random.default_rng(0).integers(-1024, 3071, (4, 12, 10)).astype(np.int16)
    return Volume(hu, Grid(hu.shape, (3.0, 0.4321, 0.4321), (-91.25, -80.5, 12.125)))


def test_a_series_reads_back_unchanged(tmp_path: Path) -> None:
    still = volume()
    files = write_ct_series(tmp_path / "scan", still, "phantom-00001")
    assert len(files) == 4
    scan = read_scan(tmp_path / "scan")
    np.testing.assert_array_equal(scan.volume.hu, still.hu)
    assert still.grid.mismatch(scan.volume.grid) is None


def test_the_same_scan_gives_the_same_bytes(tmp_path: Path) -> None:
    first = write_ct_series(tmp_path / "a", volume(), "phantom-00001")
    second = write_ct_series(tmp_path / "b", volume(), "phantom-00001")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_the_standard_finds_no_error(
    tmp_path: Path, dciodvfy_errors: Callable[[Path], set[str]]
) -> None:
    files = write_ct_series(tmp_path / "scan", volume(), "phantom-00001", psf_fwhm_mm=1.0)
    assert dciodvfy_errors(files[0]) == set()


def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    still = volume()
    with pytest.raises(ProdmError, match="-1024 to 3071 HU"):
        write_ct_series(tmp_path, still.with_hu(still.hu - np.int16(5000)), "phantom")


def test_a_tilted_volume_is_refused(tmp_path: Path) -> None:
    still = volume()
    with pytest.raises(ProdmError, match="axial"):
        write_ct_series(tmp_path, still.flip(0), "phantom")
