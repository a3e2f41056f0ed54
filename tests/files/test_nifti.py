"""NIfTI and NRRD: any orientation in, the same voxel at the same place out."""

import gzip
import itertools
from pathlib import Path
from typing import Any

import nibabel
import nrrd
import numpy as np
import pytest
import SimpleITK
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from prodm.errors import ProdmError
from prodm.files.nifti import write_nifti, write_nifti_mask
from prodm.files.scans import read_scan
from prodm.volume import Grid, Volume

ORIENTATIONS = [
    "".join(letters)
    for axes in itertools.permutations([("L", "R"), ("P", "A"), ("S", "I")])
    for letters in itertools.product(*axes)
]


def hu_of(shape: tuple[int, int, int] = (4, 5, 6)) -> NDArray[np.int16]:
    values = np.random.default_rng(1).permutation(np.arange(np.prod(shape))) * 7 - 700
    return values.reshape(shape).astype(np.int16)


def still_volume() -> Volume:
    return Volume(hu_of(), Grid((4, 5, 6), (2.5, 0.75, 0.5), (-20.0, -30.0, 100.0)))


def check_same_places(volume: Volume, image: SimpleITK.Image) -> None:
    for index in np.ndindex(volume.shape):
        position = volume.grid.position_xyz_mm(index)
        there = image.TransformPhysicalPointToContinuousIndex(position)
        np.testing.assert_allclose(there, np.rint(there), atol=1e-3)
        assert image[[round(i) for i in there]] == volume.hu[index]


def test_there_are_48_orientations() -> None:
    assert len(set(ORIENTATIONS)) == 48


@pytest.mark.parametrize("suffix", [".nii.gz", ".nrrd"])
@pytest.mark.parametrize("letters", ORIENTATIONS)
def test_any_orientation_comes_back_as_left_back_head(
    tmp_path: Path, letters: str, suffix: str
) -> None:
    still = still_volume()
    write_nifti(tmp_path / "still.nii", still)
    image = SimpleITK.DICOMOrient(SimpleITK.ReadImage(str(tmp_path / "still.nii")), letters)
    path = tmp_path / f"turned{suffix}"
    SimpleITK.WriteImage(image, str(path))
    scan = read_scan(path)
    assert still.grid.mismatch(scan.volume.grid) is None
    np.testing.assert_array_equal(scan.volume.hu, still.hu)
    check_same_places(scan.volume, image)
    assert not scan.is_dicom
    with pytest.raises(ProdmError, match="is not DICOM"):
        scan.datasets()


@given(
    angles_deg=st.tuples(*[st.floats(-25, 25)] * 3),
    spacing=st.tuples(*[st.floats(0.2, 6)] * 3),
    origin=st.tuples(*[st.floats(-400, 400)] * 3),
)
@settings(max_examples=25, deadline=None)
def test_an_oblique_volume_survives_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    angles_deg: tuple[float, float, float],
    spacing: tuple[float, float, float],
    origin: tuple[float, float, float],
) -> None:
    from scipy.spatial.transform import Rotation

    matrix = Rotation.from_euler("xyz", angles_deg, degrees=True).as_matrix()
    direction = tuple(tuple(float(x) for x in row) for row in matrix)
    volume = Volume(hu_of(), Grid((4, 5, 6), spacing, origin, direction))  # type: ignore[arg-type]
    path = tmp_path_factory.mktemp("oblique") / "scan.nii"
    write_nifti(path, volume)
    back = read_scan(path).volume
    assert volume.to_lps().grid.mismatch(back.grid) is None
    np.testing.assert_array_equal(back.hu, volume.to_lps().hu)
    check_same_places(back, SimpleITK.ReadImage(str(path)))


@pytest.mark.parametrize(
    ("values", "dtype", "stored"),
    [
        ([-1000.0, 40.0], np.int16, np.float32),
        ([-1000.0, 40.0], np.int16, np.float64),
        ([-1000.0, 40.0], np.int16, np.int32),
        ([-1000.0, 40.5], np.float32, np.float32),
        ([-1000.0, 40.5], np.float32, np.float64),
        ([-1000.0, 40_000.0], np.float32, np.float32),
        ([-1000.0, 40_000.0], np.float32, np.float64),
        ([-1000.0, 40_000.0], np.float32, np.int32),
    ],
)
def test_int16_where_exact_else_float32(
    tmp_path: Path, values: list[float], dtype: type, stored: type
) -> None:
    array: NDArray[Any] = np.resize(values, (4, 4, 4)).astype(stored)
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4), dtype=stored), tmp_path / "s.nii")
    hu = read_scan(tmp_path / "s.nii").volume.hu
    assert hu.dtype == dtype
    assert sorted(np.unique(hu)) == sorted(values)


def test_scale_and_intercept_are_applied(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(np.full((3, 3, 3), 4, dtype=np.int16), np.eye(4))
    image.header.set_slope_inter(0.5, -1000)
    nibabel.save(image, tmp_path / "s.nii")
    content = bytearray((tmp_path / "s.nii").read_bytes())
    content[112:120] = np.array([0.5, -1000], np.float32).tobytes()
    content[352:] = np.full(27, 4, np.int16).tobytes()
    (tmp_path / "s.nii").write_bytes(content)
    assert np.unique(read_scan(tmp_path / "s.nii").volume.hu) == [-998]


def test_nifti2_and_big_endian_files_are_read(tmp_path: Path) -> None:
    still = still_volume()
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ still.grid.affine
    data = still.hu.transpose(2, 1, 0)
    nibabel.save(nibabel.Nifti2Image(data, affine), tmp_path / "two.nii")
    header = nibabel.Nifti1Header(endianness=">")
    header.set_data_dtype(np.int16)
    nibabel.save(nibabel.Nifti1Image(data, affine, header), tmp_path / "big.nii.gz")
    for name in ("two.nii", "big.nii.gz"):
        np.testing.assert_array_equal(read_scan(tmp_path / name).volume.hu, still.hu)


def test_metres_become_millimetres(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(hu_of((3, 3, 3)), np.diag([-0.0005, -0.0005, 0.003, 1]))
    image.header.set_xyzt_units("meter")
    nibabel.save(image, tmp_path / "s.nii")
    assert read_scan(tmp_path / "s.nii").volume.spacing_mm == pytest.approx((3, 0.5, 0.5))


def test_padding_becomes_air(tmp_path: Path) -> None:
    hu = hu_of()
    hu[0, 0, 0] = -3024
    write_nifti(tmp_path / "s.nii", still_volume().with_hu(hu))
    assert read_scan(tmp_path / "s.nii").volume.hu[0, 0, 0] == -1024


def test_warnings_tell_of_doubt(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(np.ones((3, 3, 3), np.float32) * 0.5, None)
    nibabel.save(image, tmp_path / "s.nii")
    assert read_scan(tmp_path / "s.nii").warnings == (
        "the file does not say how it lies in the patient",
        "the lowest value is 0.5, so these may not be Hounsfield units",
    )


def test_what_cannot_be_a_scan_is_refused(tmp_path: Path) -> None:
    def save(array: NDArray[np.generic], affine: NDArray[np.float64] | None = None) -> Path:
        matrix = np.eye(4) if affine is None else affine
        nibabel.save(nibabel.Nifti1Image(array, matrix), tmp_path / "s.nii")
        return tmp_path / "s.nii"

    hu = hu_of().astype(np.float32)
    for bad in (np.nan, np.inf):
        hu[0, 0, 0] = bad
        with pytest.raises(ProdmError, match="not finite"):
            read_scan(save(hu))
    with pytest.raises(ProdmError, match="three axes"):
        read_scan(save(np.zeros((3, 3, 3, 2), np.int16)))
    with pytest.raises(ProdmError, match="three axes"):
        read_scan(save(np.zeros((3, 3), np.int16)))
    with pytest.raises(ProdmError, match="colours or complex"):
        read_scan(save(np.zeros((3, 3, 3), np.complex64)))
    sheared = np.eye(4)
    sheared[1, 2] = 0.2
    with pytest.raises(ProdmError, match="sheared"):
        read_scan(save(hu_of(), sheared))
    with pytest.raises(ProdmError, match="--series chooses among DICOM series"):
        read_scan(save(hu_of()), "1")
    (tmp_path / "s.txt").write_text("a text")
    with pytest.raises(ProdmError, match="none of DICOM, NIfTI, NRRD and zip"):
        read_scan(tmp_path / "s.txt")


def test_absurd_sizes_are_refused_before_reading(tmp_path: Path) -> None:
    write_nifti(tmp_path / "s.nii", still_volume())
    content = bytearray((tmp_path / "s.nii").read_bytes())
    content[42:48] = np.array([32767] * 3, np.int16).tobytes()
    (tmp_path / "s.nii").write_bytes(content)
    with pytest.raises(ProdmError, match="too many for a CT scan"):
        read_scan(tmp_path / "s.nii")
    (tmp_path / "s.nii.gz").write_bytes(gzip.compress(bytes(content)))
    with pytest.raises(ProdmError, match="too many for a CT scan"):
        read_scan(tmp_path / "s.nii.gz")


NRRD_HEADER = {
    "space": "left-posterior-superior",
    "space directions": np.diag([0.5, 0.75, 2.5]),
    "space origin": np.array([-20.0, -30.0, 100.0]),
}


@pytest.mark.parametrize("encoding", ["raw", "gzip", "bzip2", "ascii"])
@pytest.mark.parametrize("detached", [False, True], ids=["attached", "detached"])
def test_nrrd_encodings_attached_and_detached(
    tmp_path: Path, encoding: str, detached: bool
) -> None:
    still = still_volume()
    path = tmp_path / ("s.nhdr" if detached else "s.nrrd")
    nrrd.write(str(path), still.hu.transpose(2, 1, 0), {**NRRD_HEADER, "encoding": encoding},
               detached_header=detached)  # fmt: skip
    scan = read_scan(path)
    assert scan.volume.grid.mismatch(still.grid) is None
    np.testing.assert_array_equal(scan.volume.hu, still.hu)


@pytest.mark.parametrize(
    ("space", "signs"),
    [("right-anterior-superior", (-1, -1, 1)), ("left-anterior-superior", (1, -1, 1))],
)
def test_nrrd_spaces_are_turned_to_lps(
    tmp_path: Path, space: str, signs: tuple[int, int, int]
) -> None:
    still = still_volume()
    header = {
        "space": space,
        "space directions": NRRD_HEADER["space directions"] * np.array(signs),
        "space origin": NRRD_HEADER["space origin"] * np.array(signs),
    }
    nrrd.write(str(tmp_path / "s.nrrd"), still.hu.transpose(2, 1, 0), header)
    scan = read_scan(tmp_path / "s.nrrd")
    assert scan.volume.grid.mismatch(still.grid) is None
    np.testing.assert_array_equal(scan.volume.hu, still.hu)


def test_nrrd_refusals(tmp_path: Path) -> None:
    data = still_volume().hu.transpose(2, 1, 0)
    path = tmp_path / "s.nrrd"
    nrrd.write(str(path), data, {"spacings": [1, 1, 1]})
    with pytest.raises(ProdmError, match="does not say how it lies in the patient"):
        read_scan(path)
    nrrd.write(str(path), data, {**NRRD_HEADER, "encoding": "raw"})
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ProdmError, match="cut short: 230 of 240 bytes"):
        read_scan(path)
    path.write_bytes(path.read_bytes().replace(b"sizes: 6 5 4", b"sizes: 60000 50000 40000"))
    with pytest.raises(ProdmError, match="too many for a CT scan"):
        read_scan(path)
    nrrd.write(str(tmp_path / "d.nhdr"), data, {**NRRD_HEADER}, detached_header=True)
    (tmp_path / "d.raw.gz").unlink()
    with pytest.raises(ProdmError, match="No such file"):
        read_scan(tmp_path / "d.nhdr")


def test_written_nifti_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("a.nii.gz", "b.nii.gz"):
        write_nifti(tmp_path / name, still_volume())
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nii.gz", "b.nii.gz"]
    image = nibabel.load(tmp_path / "a.nii.gz")
    assert nibabel.aff2axcodes(image.affine) == ("L", "P", "S")
    assert image.header.get_xyzt_units()[0] == "mm"
    assert image.get_data_dtype() == np.int16


def test_float_volumes_round_trip(tmp_path: Path) -> None:
    hu = hu_of().astype(np.float32) + np.float32(0.125)
    write_nifti(tmp_path / "s.nii.gz", still_volume().with_hu(hu))
    np.testing.assert_array_equal(read_scan(tmp_path / "s.nii.gz").volume.hu, hu)


def test_writing_checks_its_input(tmp_path: Path) -> None:
    still = still_volume()
    with pytest.raises(ProdmError, match=r"named .nii or .nii.gz"):
        write_nifti(tmp_path / "s.img", still)
    with pytest.raises(ProdmError, match="but its grid is"):
        write_nifti_mask(tmp_path / "m.nii", np.zeros((1, 2, 3)), still.grid)
    with pytest.raises(ProdmError, match="0 to 255, got 0 to 256"):
        write_nifti_mask(tmp_path / "m.nii", np.arange(257).reshape(257, 1, 1),
                         Grid((257, 1, 1), (1, 1, 1)))  # fmt: skip
