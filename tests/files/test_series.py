"""Which series is read, and why another is refused."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset

from prodm.errors import ProdmError
from prodm.files.scans import find_scans, read_scan

WriteSeries = Callable[..., list[Path]]
Change = Callable[[Dataset, int], None]
ROOT = "1.2.826.0.1.3680043.8.498.77"


def setting(**values: object) -> Change:
    def change(dataset: Dataset, index: int) -> None:
        for keyword, value in values.items():
            if value is None:
                delattr(dataset, keyword)
            else:
                setattr(dataset, keyword, value)

    return change


def test_several_series_are_listed_and_asked_for(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path, series=2, num_slices=4, change=setting(ConvolutionKernel="B60"))
    write_ct_series(tmp_path, series=1, num_slices=6, spacing_mm=(1.5, 0.5, 0.5))
    with pytest.raises(ProdmError) as caught:
        read_scan(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} holds 2 series; choose one with --series and its number or UID:\n"
        f"  1  Series 1, 6 slices, 1.5 mm, kernel I30f, {ROOT}.1\n"
        f"  2  Series 2, 4 slices, 3 mm, kernel B60, {ROOT}.2"
    )
    assert read_scan(tmp_path, "1").volume.shape[0] == 6
    assert read_scan(tmp_path, "2").volume.shape[0] == 4
    assert read_scan(tmp_path, f"{ROOT}.2").series_uid == f"{ROOT}.2"
    with pytest.raises(ProdmError, match="has no series '3'; it has:"):
        read_scan(tmp_path, "3")


def test_localizers_screenshots_and_pet_are_not_candidates(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path, series=1)
    write_ct_series(
        tmp_path, series=2, num_slices=1, change=setting(ImageType=["ORIGINAL", "LOCALIZER"])
    )
    write_ct_series(tmp_path, series=3, num_slices=2, orientation=(0, 1, 0, 0, 0, -1))
    write_ct_series(tmp_path, series=4, change=setting(Modality="PT"))
    capture = setting(SOPClassUID="1.2.840.10008.5.1.4.1.1.7")
    write_ct_series(tmp_path, series=5, num_slices=1, change=capture)
    assert read_scan(tmp_path).series_uid == f"{ROOT}.1"
    with pytest.raises(ProdmError, match=r"'Series 4' of .* is not CT but PET"):
        read_scan(tmp_path, f"{ROOT}.4")
    with pytest.raises(ProdmError, match="is a localizer"):
        read_scan(tmp_path, f"{ROOT}.2")


def test_a_localizer_inside_the_series_is_left_out(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    def first_is_localizer(dataset: Dataset, index: int) -> None:
        if index == 0:
            dataset.ImageType = ["ORIGINAL", "PRIMARY", "LOCALIZER"]
            dataset.ImageOrientationPatient = [0, 1, 0, 0, 0, -1]

    write_ct_series(tmp_path, num_slices=5, change=first_is_localizer)
    assert read_scan(tmp_path).volume.shape[0] == 4


def test_only_localizers_are_refused(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    write_ct_series(tmp_path, num_slices=2, change=setting(ImageType=["ORIGINAL", "LOCALIZER"]))
    with pytest.raises(ProdmError, match="holds only localizer images"):
        read_scan(tmp_path)


def move(index: int, z_mm: float, x_mm: float = 0) -> Change:
    def change(dataset: Dataset, number: int) -> None:
        if number == index:
            x, y, z = dataset.ImagePositionPatient
            dataset.ImagePositionPatient = [x + x_mm, y, z + z_mm]

    return change


def tilt(dataset: Dataset, index: int) -> None:
    x, y, z = dataset.ImagePositionPatient
    dataset.ImagePositionPatient = [x, y + 0.6 * index, z]


def last_is(**values: object) -> Change:
    def change(dataset: Dataset, index: int) -> None:
        if index == 4:
            setting(**values)(dataset, index)

    return change


REFUSALS = {
    "duplicated position": (move(2, -3.0), r"1 duplicated slice positions, the first at 103 mm"),
    "gap": (move(4, 6.0), r"gap of 9 mm between 109 and 118 mm, where slices are 3 mm apart"),
    "unequal spacing": (move(2, 1.0), r"unequal slice spacing, 2 to 4 mm"),
    "gantry tilt": (tilt, r"gantry tilted by 11.3 degrees"),
    "sideways": (move(2, 0.0, 5.0), "shifted sideways"),
    "mixed orientations": (
        last_is(ImageOrientationPatient=[0, 1, 0, 0, 0, -1]),
        "mixes slices of different orientations",
    ),
    "mixed pixel spacing": (last_is(PixelSpacing=[0.6, 0.6]), "different pixel spacing"),
    "no rescale": (
        setting(RescaleSlope=None, RescaleIntercept=None),
        r"IM-0001-0001.dcm has no calibration to HU",
    ),
    "one slice without rescale": (last_is(RescaleSlope=None), "no calibration to HU"),
    "slope of zero": (setting(RescaleSlope=0), "no calibration to HU"),
    "MR": (setting(Modality="MR"), "is not CT but MR"),
    "PET": (setting(Modality="PT"), "is not CT but PET"),
    "not HU": (setting(RescaleType="Z_EFF"), "values of type Z_EFF"),
    "coronal": (
        setting(ImageOrientationPatient=[1, 0, 0, 0, 0, -1]),
        "is coronal, 90 degrees from axial",
    ),
    "oblique": (
        setting(ImageOrientationPatient=[1, 0, 0, 0, 0.8, 0.6]),
        "is oblique, 37 degrees from axial",
    ),
    "no position": (setting(ImagePositionPatient=None), "does not say where it lies"),
    "no pixel spacing": (setting(PixelSpacing=None), "has no PixelSpacing"),
    "orientation of no length": (
        setting(ImageOrientationPatient=[0, 0, 0, 0, 1, 0]),
        "not two unit vectors",
    ),
    "colour": (
        setting(SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0),
        "colour image",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_each_refusal_has_its_own_sentence(
    tmp_path: Path, write_ct_series: WriteSeries, name: str
) -> None:
    change, sentence = REFUSALS[name]
    write_ct_series(tmp_path, num_slices=5, change=change)
    with pytest.raises(ProdmError, match=sentence):
        read_scan(tmp_path)


def test_mixed_sizes_are_refused(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    write_ct_series(tmp_path / "a", np.zeros((2, 8, 8)))
    write_ct_series(tmp_path / "b", np.zeros((2, 8, 9)), origin_xyz_mm=(0, 0, 50))
    with pytest.raises(ProdmError, match="mixes slices of 8 x 8 and 8 x 9 pixels"):
        read_scan(tmp_path)


def test_rounded_positions_are_not_unequal(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    def rounding(dataset: Dataset, index: int) -> None:
        x, y, z = dataset.ImagePositionPatient
        dataset.ImagePositionPatient = [x, y, round(z, 1)]

    write_ct_series(tmp_path, num_slices=9, spacing_mm=(0.625, 0.5, 0.5), change=rounding)
    assert read_scan(tmp_path).volume.spacing_mm[0] == pytest.approx(0.625)


def test_thickness_other_than_spacing_is_said_and_spacing_counts(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path, change=setting(SliceThickness=3.75))
    scan = read_scan(tmp_path)
    assert scan.volume.spacing_mm[0] == 3.0
    assert scan.slice_thickness_mm == 3.75
    assert scan.warnings == ("slices are 3.75 mm thick and 3 mm apart; the distance counts",)


def test_the_same_image_twice_is_taken_once(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    files = write_ct_series(tmp_path, num_slices=4)
    (tmp_path / "copy of it.dcm").write_bytes(files[1].read_bytes())
    scan = read_scan(tmp_path)
    assert scan.volume.shape[0] == 4
    assert scan.warnings == ("1 images are there twice and were taken once",)


NO_UIDS = setting(SeriesInstanceUID=None, StudyInstanceUID=None, FrameOfReferenceUID=None)


def test_missing_uids_read_fine_and_get_a_stable_one(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path / "here", change=NO_UIDS)
    write_ct_series(tmp_path / "there" / "deeper", change=NO_UIDS)
    write_ct_series(tmp_path / "other", num_slices=4, change=NO_UIDS)
    here, there, other = (read_scan(tmp_path / name) for name in ("here", "there", "other"))
    assert here.series_uid_made
    assert here.series_uid == there.series_uid != other.series_uid
    assert pydicom.uid.UID(here.series_uid or "").is_valid


def test_without_uids_folders_and_kernels_tell_series_apart(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path / "a", series=1, change=NO_UIDS)
    write_ct_series(tmp_path / "b", series=1, change=NO_UIDS)
    with pytest.raises(ProdmError, match="holds 2 series"):
        read_scan(tmp_path)

    def sharp(dataset: Dataset, index: int) -> None:
        NO_UIDS(dataset, index)
        dataset.ConvolutionKernel = "B60f"
        dataset.SeriesNumber, dataset.SeriesDescription = 1, "Series 1"

    write_ct_series(tmp_path / "a", series=2, change=sharp)
    with pytest.raises(ProdmError, match="holds 2 series"):
        read_scan(tmp_path / "a")


def test_invalid_uids_and_dates_read_quietly(
    tmp_path: Path, write_ct_series: WriteSeries, tolerant_pydicom: None
) -> None:
    broken = setting(
        SeriesInstanceUID="1.2.840.0113.x.007", StudyDate="00010101", KVP="", PatientAge="old"
    )
    write_ct_series(tmp_path, change=broken)
    scan = read_scan(tmp_path)
    assert scan.series_uid == "1.2.840.0113.x.007"
    assert scan.kvp is None


def test_files_named_dcm_that_are_something_else_are_said(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path)
    (tmp_path / "empty.dcm").touch()
    assert read_scan(tmp_path).warnings == (
        "1 file is named .dcm but not DICOM, such as empty.dcm",
    )


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProdmError, match="holds no DICOM image"):
        read_scan(tmp_path)


def test_scans_below_a_folder_are_found_one_by_one(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    from prodm.files.nifti import write_nifti, write_nifti_mask

    write_ct_series(tmp_path / "p1" / "ct", series=1)
    write_ct_series(tmp_path / "p1" / "ct", series=2)
    scout = setting(ImageType=["ORIGINAL", "LOCALIZER"])
    write_ct_series(tmp_path / "p1" / "ct", series=3, num_slices=1, change=scout)
    write_ct_series(tmp_path / "p2", series=4, change=NO_UIDS)
    write_ct_series(tmp_path / "p3", series=5, change=setting(Modality="PT"))
    volume = read_scan(tmp_path / "p2").volume
    (tmp_path / "p4").mkdir()
    write_nifti(tmp_path / "p4" / "scan.nii.gz", volume)
    write_nifti(tmp_path / "p4" / "calcium.nii.gz", volume)
    write_nifti_mask(tmp_path / "p4" / "unnamed.nii.gz", volume.hu > 100, volume.grid)
    with zipfile.ZipFile(tmp_path / "p5.zip", "w") as archive:
        for path in (tmp_path / "p2").iterdir():
            archive.write(path, path.name)
    (tmp_path / "bad.zip").write_bytes(b"PK\x03\x04 but no more")
    (tmp_path / "notes.txt").write_text("nothing")
    found = find_scans(tmp_path)
    listed = [(entry.path.relative_to(tmp_path).as_posix(), entry.description) for entry in found]
    assert listed == [
        ("bad.zip", ""),
        ("p1/ct", "Series 1"),
        ("p1/ct", "Series 2"),
        ("p2", "Series 4"),
        ("p3", "Series 5"),
        ("p4/scan.nii.gz", ""),
        ("p5.zip", "Series 4"),
    ]  # fmt: skip
    readable = [found[n] for n in (1, 2, 3, 5, 6)]
    assert all(read_scan(e.path, e.series).volume.shape == (5, 24, 32) for e in readable)
    for bad, reason in ((found[0], "not a whole zip"), (found[4], "PET")):
        with pytest.raises(ProdmError, match=reason):
            read_scan(bad.path, bad.series)


def test_only_a_folder_is_searched(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ProdmError, match="not a folder to search"):
        find_scans(tmp_path / "file")
