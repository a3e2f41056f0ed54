"""The derived series: exact pixels, true origin, new and stable identity, valid DICOM."""

import errno
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import SimpleITK
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.uid import UID, ExplicitVRBigEndian, JPEGLSLossless, JPEGLSNearLossless, RLELossless

import prodm
from prodm.calcium import AIR_HU
from prodm.errors import ProdmError
from prodm.files.derived import write_derived_series
from prodm.files.provenance import save
from prodm.files.scans import Scan, read_scan
from prodm.runs import new_folder
from prodm.volume import Grid, Volume

WriteSeries = Callable[..., list[Path]]
SETTINGS = {"steps": 10, "seed": 0}
KEPT = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyInstanceUID"),
    *("StudyDate", "StudyTime", "StudyID", "AccessionNumber", "FrameOfReferenceUID"),
    *("ImagePositionPatient", "WindowCenter", "WindowWidth", "InstanceNumber", "ContentDate"),
    *("KVP", "Manufacturer"),
)
MALFORMED_UID = "1.2.840.00.113"


def write(
    scan: Scan,
    corrected: Volume,
    folder: Path,
    description: str = "motion corrected",
    settings: Mapping[str, Any] = SETTINGS,
) -> list[Path]:
    return write_derived_series(scan, corrected, folder, description=description, settings=settings)


def with_changes(scan: Scan, shift_hu: float = 111) -> Volume:
    """Brighten a block of the middle slice, off the diagonal of every axis."""
    hu = scan.volume.hu.astype(np.float32)
    hu[scan.volume.shape[0] // 2, 5:9, 12:18] += shift_hu
    return scan.volume.with_hu(hu)


def stored_pixels(paths: list[Path]) -> NDArray[np.int64]:
    return np.stack([pydicom.dcmread(path).pixel_array.astype(np.int64) for path in paths])


def same_place(one: Grid, other: Grid) -> bool:
    return one.mismatch(other) is None


def test_a_corrected_volume_comes_back_exactly(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path / "ct")
    scan = read_scan(tmp_path / "ct")
    corrected = with_changes(scan)
    write(scan, corrected, tmp_path / "out")
    back = read_scan(tmp_path / "out")
    np.testing.assert_array_equal(back.volume.hu, corrected.hu)
    assert same_place(scan.volume.grid, back.volume.grid)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("slope", [1.0, 0.5, 2.0])
def test_changed_voxels_are_exact_to_the_rescale_step_and_others_bit_identical(
    tmp_path: Path, write_ct_series: WriteSeries, signed: bool, slope: float
) -> None:
    def own_rescale(dataset: Dataset, index: int) -> None:
        if index % 2:  # per-slice rescale
            dataset.RescaleSlope = 3 * slope
            dataset.RescaleIntercept = -1100.0

    intercept = 0.0 if signed else -1024.0
    sources = write_ct_series(
        tmp_path / "ct",
        slope=slope,
        intercept=intercept,
        signed=signed,
        bits_stored=16,
        change=own_rescale,
    )
    scan = read_scan(tmp_path / "ct")
    hu = scan.volume.hu.astype(np.float32)
    changed = np.zeros(hu.shape, dtype=bool)
    changed[1:4, 4:9, 7:20] = True
    hu[changed] += 77.3
    corrected = scan.volume.with_hu(hu)
    paths = write(scan, corrected, tmp_path / "out")
    np.testing.assert_array_equal(stored_pixels(paths)[~changed], stored_pixels(sources)[~changed])
    back = read_scan(tmp_path / "out").volume.hu
    step_hu = np.where(np.arange(len(hu)) % 2, 3 * slope, slope)[:, None, None]
    assert np.all(np.abs(back - hu) <= step_hu / 2 + 1e-3)
    assert np.abs(back - scan.volume.hu)[changed].min() > 70


def test_a_change_counts_from_half_a_rescale_step_on(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    sources = write_ct_series(tmp_path / "ct", slope=2.0)
    scan = read_scan(tmp_path / "ct")
    hu = scan.volume.hu.astype(np.float32)
    hu[2, 10, 10:14] += (0.8, 1.2, -0.8, -1.2)
    paths = write(scan, scan.volume.with_hu(hu), tmp_path / "out")
    moved = stored_pixels(paths) - stored_pixels(sources)
    assert moved[2, 10, 10:14].tolist() == [0, 1, 0, -1]
    assert np.count_nonzero(moved) == 2


@pytest.mark.parametrize(
    "orientation",
    [(1, 0, 0, 0, 1, 0), (-1, 0, 0, 0, -1, 0), (1, 0, 0, 0, -1, 0), (0, 1, 0, 1, 0, 0)],
)
def test_any_order_of_pixels_on_disk_is_kept(
    tmp_path: Path, write_ct_series: WriteSeries, orientation: tuple[int, ...]
) -> None:
    sources = write_ct_series(tmp_path / "ct", orientation=orientation)
    scan = read_scan(tmp_path / "ct")
    corrected = with_changes(scan)
    paths = write(scan, corrected, tmp_path / "out")
    np.testing.assert_array_equal(read_scan(tmp_path / "out").volume.hu, corrected.hu)
    differs = [
        int(np.count_nonzero(stored_pixels([new]) != stored_pixels([old])))
        for new, old in zip(paths, sorted(sources, key=_z), strict=True)
    ]
    assert differs == [0, 0, 24, 0, 0]


def _z(path: Path) -> float:
    return float(pydicom.dcmread(path, stop_before_pixels=True).ImagePositionPatient[2])


def test_a_third_party_reader_sees_the_same_geometry_and_values(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path / "ct", spacing_mm=(2.5, 0.7, 0.6), origin_xyz_mm=(-31.5, 12.25, -7))
    scan = read_scan(tmp_path / "ct")
    corrected = with_changes(scan)
    write(scan, corrected, tmp_path / "out")
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(tmp_path / "out")))
    image = reader.Execute()
    np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(image), corrected.hu)
    np.testing.assert_allclose(image.GetSpacing(), scan.volume.spacing_mm[::-1])
    np.testing.assert_allclose(image.GetOrigin(), scan.volume.grid.origin_xyz_mm)
    np.testing.assert_allclose(image.GetDirection(), np.ravel(scan.volume.grid.direction))


def test_it_is_a_new_series_of_the_same_patient_and_study(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    sources = write_ct_series(tmp_path / "ct")
    scan = read_scan(tmp_path / "ct")
    paths = write(scan, with_changes(scan), tmp_path / "out")
    old = [pydicom.dcmread(path) for path in sources]
    new = [pydicom.dcmread(path) for path in paths]
    for before, after in zip(old, new, strict=True):
        for keyword in KEPT:
            assert after[keyword] == before[keyword], keyword
        assert list(after.ImageType) == ["DERIVED", "SECONDARY", "AXIAL"]
        reference = after.SourceImageSequence[0]
        assert reference.ReferencedSOPInstanceUID == before.SOPInstanceUID
        assert after.file_meta.MediaStorageSOPInstanceUID == after.SOPInstanceUID
        assert after.SeriesNumber != before.SeriesNumber
        for text in (after.SeriesDescription, after.DerivationDescription):
            assert f"prodm {prodm.__version__}" in text
            assert "research use only" in text
        assert '"steps": 10' in after.DerivationDescription
        assert after.ContributingEquipmentSequence[-1].ManufacturerModelName == "prodm"
    uids = {dataset.SOPInstanceUID for dataset in new}
    assert len(uids) == len(new)
    assert uids.isdisjoint(dataset.SOPInstanceUID for dataset in old)
    assert len({dataset.SeriesInstanceUID for dataset in new}) == 1
    assert new[0].SeriesInstanceUID != old[0].SeriesInstanceUID
    assert all(dataset.SOPInstanceUID.is_valid for dataset in new)


def test_the_same_input_and_settings_give_the_same_bytes_and_others_do_not(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path / "ct")
    scan = read_scan(tmp_path / "ct")
    corrected = with_changes(scan)
    first = write(scan, corrected, tmp_path / "1")
    again = write(scan, corrected, tmp_path / "2")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    other_settings = write(scan, corrected, tmp_path / "3", settings={"steps": 4, "seed": 0})
    other_result = write(scan, with_changes(scan, 50), tmp_path / "4")
    moved = write_ct_series(tmp_path / "ct2", origin_xyz_mm=(0, 0, 0))
    assert moved
    other = read_scan(tmp_path / "ct2")
    other_source = write(other, with_changes(other), tmp_path / "5")
    all_paths = (first, other_settings, other_result, other_source)
    uids = {pydicom.dcmread(paths[0]).SeriesInstanceUID for paths in all_paths}
    assert len(uids) == 4


def test_padding_stays_padding(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    def pad(dataset: Dataset, index: int) -> None:
        pixels = np.frombuffer(dataset.PixelData, np.int16).reshape(24, 32).copy()
        pixels[:3] = -2000
        dataset.PixelData = pixels.tobytes()
        dataset.add_new("PixelPaddingValue", "SS", -2000)

    write_ct_series(tmp_path / "ct", signed=True, bits_stored=16, intercept=0.0, change=pad)
    scan = read_scan(tmp_path / "ct")
    assert np.all(scan.volume.hu[:, :3] == AIR_HU)
    corrected = with_changes(scan)
    paths = write(scan, corrected, tmp_path / "out")
    assert np.all(stored_pixels(paths)[:, :3] == -2000)
    np.testing.assert_array_equal(read_scan(tmp_path / "out").volume.hu, corrected.hu)


def test_a_corrected_value_never_becomes_padding(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    def pad(dataset: Dataset, index: int) -> None:
        dataset.add_new("PixelPaddingValue", "US", 1224)  # 200 HU

    write_ct_series(tmp_path / "ct", change=pad)
    scan = read_scan(tmp_path / "ct")
    hu = scan.volume.hu.copy()
    hu[2, 10, 10] = 200
    write(scan, scan.volume.with_hu(hu), tmp_path / "out")
    assert read_scan(tmp_path / "out").volume.hu[2, 10, 10] == 201


def test_values_beyond_the_stored_bits_widen_them_and_do_not_wrap(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path / "ct", bits_stored=12)
    scan = read_scan(tmp_path / "ct")
    hu = scan.volume.hu.copy()
    hu[2, 10, 10:12] = 4000, 0  # 4000 is stored as 5024: 13 bits
    paths = write(scan, scan.volume.with_hu(hu), tmp_path / "out")
    datasets = [pydicom.dcmread(path) for path in paths]
    assert {(dataset.BitsStored, dataset.HighBit) for dataset in datasets} == {(13, 12)}
    np.testing.assert_array_equal(read_scan(tmp_path / "out").volume.hu, hu)


@pytest.mark.parametrize("value_hu", [70000.0, -1100.0])
def test_values_beyond_sixteen_bits_are_refused(
    tmp_path: Path, write_ct_series: WriteSeries, value_hu: float
) -> None:
    write_ct_series(tmp_path / "ct")
    scan = read_scan(tmp_path / "ct")
    hu = scan.volume.hu.astype(np.float32)
    hu[2, 10, 10] = value_hu
    with pytest.raises(ProdmError, match="fit the 16 bits"):
        write(scan, scan.volume.with_hu(hu), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_values_that_are_not_numbers_are_refused(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path / "ct")
    scan = read_scan(tmp_path / "ct")
    hu = scan.volume.hu.astype(np.float32)
    hu[2, 10, 10] = np.nan
    with pytest.raises(ProdmError, match="not numbers"):
        write(scan, scan.volume.with_hu(hu), tmp_path / "out")


def test_a_volume_on_another_grid_and_a_scan_that_is_not_dicom_are_refused(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path / "ct")
    scan = read_scan(tmp_path / "ct")
    with pytest.raises(ProdmError, match="must be on the scan's grid, but it has"):
        write(scan, scan.volume.crop((slice(0, 2), slice(None), slice(None))), tmp_path / "out")
    with pytest.raises(ProdmError, match="only a DICOM scan"):
        write(replace(scan, format="nifti"), scan.volume, tmp_path / "out")


@pytest.mark.parametrize("syntax", [JPEGLSLossless, RLELossless])
def test_a_compressed_source_is_written_uncompressed(
    tmp_path: Path, write_ct_series: WriteSeries, syntax: str
) -> None:
    sources = write_ct_series(
        tmp_path / "ct",
        change=lambda dataset, _: dataset.compress(syntax, generate_instance_uid=False),
    )
    scan = read_scan(tmp_path / "ct")
    corrected = with_changes(scan)
    paths = write(scan, corrected, tmp_path / "out")
    new = pydicom.dcmread(paths[2])
    assert not new.file_meta.TransferSyntaxUID.is_compressed
    assert "LossyImageCompression" not in new
    assert np.count_nonzero(stored_pixels(paths) != stored_pixels(sources)) == 24


def test_lossy_compression_of_the_source_is_not_forgotten(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    def compress(dataset: Dataset, index: int) -> None:
        dataset.compress(JPEGLSNearLossless, jls_error=2, generate_instance_uid=False)
        for keyword in ("LossyImageCompression", "LossyImageCompressionMethod"):
            if keyword in dataset:
                del dataset[keyword]

    write_ct_series(tmp_path / "ct", change=compress)
    scan = read_scan(tmp_path / "ct")
    new = pydicom.dcmread(write(scan, with_changes(scan), tmp_path / "out")[0])
    assert new.LossyImageCompression == "01"
    assert new.LossyImageCompressionMethod == "ISO_14495_1"
    assert float(new.LossyImageCompressionRatio) > 1


def _coca_like(dataset: Dataset, index: int) -> None:
    for keyword in ("StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID"):
        del dataset[keyword]
    dataset.SOPInstanceUID = UID(f"{MALFORMED_UID}.{index + 1}")
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.StudyDate = "00010101"
    del dataset.InstanceNumber


@pytest.mark.usefixtures("tolerant_pydicom")
def test_missing_and_malformed_uids_become_stable_valid_ones(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path / "ct", change=_coca_like)
    scan = read_scan(tmp_path / "ct")
    runs = [
        [pydicom.dcmread(path) for path in write(scan, with_changes(scan), tmp_path / name)]
        for name in "12"
    ]
    for keyword in ("StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID"):
        uids = {dataset[keyword].value for run in runs for dataset in run}
        assert len(uids) == 1
        assert uids.pop().is_valid
    assert [dataset.SOPInstanceUID for dataset in runs[0]] == [
        dataset.SOPInstanceUID for dataset in runs[1]
    ]
    assert [dataset.InstanceNumber for dataset in runs[0]] == [1, 2, 3, 4, 5]
    assert runs[0][0].SourceImageSequence[0].ReferencedSOPInstanceUID.is_valid
    assert runs[0][0].StudyDate == "00010101"


@pytest.mark.usefixtures("tolerant_pydicom")
@pytest.mark.parametrize("change", [None, _coca_like])
def test_dciodvfy_finds_no_error_that_the_input_had_not(
    tmp_path: Path,
    write_ct_series: WriteSeries,
    dciodvfy_errors: Callable[[Path], set[str]],
    change: Callable[[Dataset, int], None] | None,
) -> None:
    sources = write_ct_series(tmp_path / "ct", change=change)
    if change is None:
        assert dciodvfy_errors(sources[0]) == set()
    scan = read_scan(tmp_path / "ct")
    paths = write(scan, with_changes(scan), tmp_path / "out")
    for new, old in zip(paths, sources, strict=True):
        assert dciodvfy_errors(new) <= dciodvfy_errors(old)


def test_private_attributes_stay_behind_and_names_in_other_letters_are_kept(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    def change(dataset: Dataset, index: int) -> None:
        dataset.private_block(0x0019, "VENDOR", create=True).add_new(1, "LO", "secret")
        dataset.SpecificCharacterSet = "ISO_IR 100"
        dataset.PatientName = "Müller^Zoë"

    write_ct_series(tmp_path / "ct", change=change)
    scan = read_scan(tmp_path / "ct")
    path = write(scan, scan.volume, tmp_path / "out", description="ähnlich \\ korrigiert")[0]
    new = pydicom.dcmread(path)
    assert str(new.PatientName) == "Müller^Zoë"
    assert new.SeriesDescription.startswith("?hnlich / korrigiert")
    assert not any(element.tag.is_private for element in new)


def test_long_descriptions_and_settings_stay_within_the_limits_of_dicom(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path / "ct")
    scan = read_scan(tmp_path / "ct")
    path = write(
        scan, scan.volume, tmp_path / "out", description="x" * 100, settings={"a": "y" * 2000}
    )[0]
    new = pydicom.dcmread(path)
    assert len(new.SeriesDescription) == 64
    assert new.SeriesDescription.endswith("research use only)")
    assert len(new.DerivationDescription) == 1024
    assert "research use only" in new.DerivationDescription


def test_a_full_disk_leaves_no_partial_series(
    tmp_path: Path, write_ct_series: WriteSeries, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ct_series(tmp_path / "ct")
    scan = read_scan(tmp_path / "ct")

    def full(dataset: Dataset, path: Path) -> None:
        save(dataset, path)
        if path.name == "image-0003.dcm":
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("prodm.files.derived.save", full)
    with pytest.raises(ProdmError, match="No space left"), new_folder(tmp_path / "out") as folder:
        write(scan, scan.volume, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["ct"]
    with pytest.raises(ProdmError, match="No space left"):
        write(scan, scan.volume, tmp_path / "bare")
    assert list((tmp_path / "bare").iterdir()) == []


def test_existing_files_are_never_replaced(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    write_ct_series(tmp_path / "ct")
    scan = read_scan(tmp_path / "ct")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "image-0002.dcm").write_text("mine")
    with pytest.raises(ProdmError, match="exists already"):
        write(scan, scan.volume, tmp_path / "out")
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_an_enhanced_image_stays_one_and_names_the_source_of_each_frame(
    tmp_path: Path,
    write_enhanced_ct: Callable[..., Path],
    dciodvfy_errors: Callable[[Path], set[str]],
) -> None:
    source = write_enhanced_ct(tmp_path / "enhanced.dcm")
    scan = read_scan(source)
    assert scan.frame_indices == (4, 3, 2, 1, 0)
    hu = scan.volume.hu.copy()
    hu[3, 5:9, 12:18] += 111
    corrected = scan.volume.with_hu(hu)
    (path,) = write(scan, corrected, tmp_path / "out")
    back = read_scan(path)
    np.testing.assert_array_equal(back.volume.hu, corrected.hu)
    assert same_place(scan.volume.grid, back.volume.grid)
    new, old = pydicom.dcmread(path), pydicom.dcmread(source)
    differs = [
        int(np.count_nonzero(a != b)) for a, b in zip(new.pixel_array, old.pixel_array, strict=True)
    ]
    assert differs == [0, 24, 0, 0, 0]
    assert list(new.ImageType) == ["DERIVED", "PRIMARY", "VOLUME", "NONE"]
    for number, group in enumerate(new.PerFrameFunctionalGroupsSequence, start=1):
        derivation = group.DerivationImageSequence[0]
        reference = derivation.SourceImageSequence[0]
        assert reference.ReferencedSOPInstanceUID == old.SOPInstanceUID
        assert reference.ReferencedFrameNumber == number
        assert "research use only" in derivation.DerivationDescription
    assert dciodvfy_errors(path) <= dciodvfy_errors(source)


def test_a_zip_of_a_series_gives_the_same_files_as_its_folder(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    write_ct_series(tmp_path / "ct")
    archive = Path(shutil.make_archive(str(tmp_path / "ct"), "zip", tmp_path / "ct"))
    bytes_of: list[list[bytes]] = []
    for source in (tmp_path / "ct", archive):
        scan = read_scan(source)
        paths = write(scan, with_changes(scan), tmp_path / f"out{len(bytes_of)}")
        bytes_of.append([path.read_bytes() for path in paths])
    assert bytes_of[0] == bytes_of[1]


def test_a_big_endian_source_comes_back_exactly(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    def swap(dataset: Dataset, index: int) -> None:
        dataset.file_meta.TransferSyntaxUID = ExplicitVRBigEndian
        dataset.PixelData = np.frombuffer(dataset.PixelData, "<u2").astype(">u2").tobytes()

    write_ct_series(tmp_path / "ct", change=swap)
    scan = read_scan(tmp_path / "ct")
    corrected = with_changes(scan)
    path = write(scan, corrected, tmp_path / "out")[0]
    np.testing.assert_array_equal(read_scan(tmp_path / "out").volume.hu, corrected.hu)
    assert pydicom.dcmread(path).Rows == 24
