"""DICOM to volumes: codecs, calibration, padding, geometry, refusals."""

import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest
import SimpleITK
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    EnhancedCTImageStorage,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
)

from prodm.errors import ProdmError
from prodm.files.scans import Scan, read_scan

WriteSeries = Callable[..., list[Path]]
CLOCKWISE = (0, 1, 0, -1, 0, 0)  # rows run to the back, columns to the right


@pytest.fixture
def hu() -> NDArray[np.int16]:
    """Whole HU without symmetry, from air to metal."""
    return np.random.default_rng(7).integers(-1024, 3000, (4, 40, 52)).astype(np.int16)


def recode(path: Path, syntax: pydicom.uid.UID) -> None:
    dataset = pydicom.dcmread(path)
    if syntax.is_compressed and syntax != DeflatedExplicitVRLittleEndian:
        dataset.compress(syntax)
        dataset.save_as(path)
        return
    if syntax == ExplicitVRBigEndian:
        dataset.PixelData = np.frombuffer(dataset.PixelData, np.uint16).byteswap().tobytes()
    dataset.file_meta.TransferSyntaxUID = syntax
    pydicom.dcmwrite(
        path,
        dataset,
        implicit_vr=syntax == ImplicitVRLittleEndian,
        little_endian=syntax != ExplicitVRBigEndian,
        force_encoding=True,
    )


@pytest.mark.parametrize(
    "syntax",
    [
        ImplicitVRLittleEndian,
        ExplicitVRLittleEndian,
        ExplicitVRBigEndian,
        DeflatedExplicitVRLittleEndian,
        RLELossless,
        JPEGLSLossless,
        JPEG2000Lossless,
    ],
    ids=lambda syntax: syntax.name,
)
@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
def test_every_syntax_gives_the_same_volume(
    tmp_path: Path,
    write_ct_series: WriteSeries,
    hu: NDArray[np.int16],
    syntax: pydicom.uid.UID,
    signed: bool,
) -> None:
    intercept = 0 if signed else -1024
    if signed and syntax == ExplicitVRBigEndian:
        intercept = -1024  # the values stay positive, so that the swap above is the same
    for path in write_ct_series(
        tmp_path / "s", hu, signed=signed, intercept=intercept, bits_stored=16
    ):
        recode(path, syntax)
    volume = read_scan(tmp_path / "s").volume
    assert volume.hu.dtype == np.int16
    np.testing.assert_array_equal(volume.hu, hu)


@pytest.mark.parametrize("bits_stored", [12, 13, 16])
@pytest.mark.parametrize(
    "syntax",
    ["1.2.840.10008.1.2.4.57", "1.2.840.10008.1.2.4.70", "1.2.840.10008.1.2.4.80"],
    ids=["process 14", "first order", "JPEG-LS"],
)
def test_gdcm_compressed_slices_come_back(
    tmp_path: Path,
    write_ct_series: WriteSeries,
    hu: NDArray[np.int16],
    syntax: str,
    bits_stored: int,
) -> None:
    import gdcm

    kinds = {
        "1.2.840.10008.1.2.4.57": gdcm.TransferSyntax.JPEGLosslessProcess14,
        "1.2.840.10008.1.2.4.70": gdcm.TransferSyntax.JPEGLosslessProcess14_1,
        "1.2.840.10008.1.2.4.80": gdcm.TransferSyntax.JPEGLSLossless,
    }
    for path in write_ct_series(tmp_path / "s", hu, bits_stored=bits_stored):
        reader = gdcm.ImageReader()
        reader.SetFileName(str(path))
        assert reader.Read()
        change = gdcm.ImageChangeTransferSyntax()
        change.SetTransferSyntax(gdcm.TransferSyntax(kinds[syntax]))
        change.SetInput(reader.GetImage())
        assert change.Change()
        writer = gdcm.ImageWriter()
        writer.SetFileName(str(path))
        writer.SetFile(reader.GetFile())
        writer.SetImage(change.GetOutput())
        assert writer.Write()
        assert pydicom.dcmread(path).file_meta.TransferSyntaxUID == syntax
    np.testing.assert_array_equal(read_scan(tmp_path / "s").volume.hu, hu)


def test_jpeg_ls_of_twelve_signed_bits_keeps_its_sign(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    hu = np.random.default_rng(3).integers(-1024, 1024, (2, 16, 16))
    for path in write_ct_series(tmp_path / "s", hu, signed=True, intercept=0, bits_stored=12):
        recode(path, JPEGLSLossless)
    np.testing.assert_array_equal(read_scan(tmp_path / "s").volume.hu, hu)


def test_each_slice_has_its_own_rescale(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    def rescale(dataset: Dataset, index: int) -> None:
        dataset.RescaleSlope = index + 1

    write_ct_series(
        tmp_path / "s", np.full((3, 8, 8), 10.0), intercept=0, change=rescale, bits_stored=16
    )
    scan = read_scan(tmp_path / "s")
    assert scan.volume.hu.dtype == np.int16
    assert scan.volume.hu[:, 0, 0].tolist() == [10, 20, 30]


def test_a_fractional_slope_gives_float32(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    hu = np.array([-512.0, 0.5, 130.25, 400.75] * 16).reshape(1, 8, 8).repeat(2, axis=0)
    write_ct_series(tmp_path / "s", hu, slope=0.25, bits_stored=16)
    volume = read_scan(tmp_path / "s").volume
    assert volume.hu.dtype == np.float32
    np.testing.assert_array_equal(volume.hu, hu)


def test_values_beyond_int16_become_float32(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    hu = np.full((3, 8, 8), 30.0)
    hu[2, 3, 3] = 40_000
    write_ct_series(tmp_path / "s", hu, bits_stored=16)
    volume = read_scan(tmp_path / "s").volume
    assert volume.hu.dtype == np.float32
    np.testing.assert_array_equal(volume.hu, hu)


@pytest.mark.parametrize("padding_hu", [-2000, -2048, -3024])
def test_undeclared_padding_becomes_air(
    tmp_path: Path, write_ct_series: WriteSeries, padding_hu: int
) -> None:
    hu = np.full((3, 8, 8), 30.0)
    hu[:, 0] = padding_hu
    write_ct_series(tmp_path / "s", hu, signed=True, bits_stored=16)
    volume = read_scan(tmp_path / "s").volume
    assert set(np.unique(volume.hu[:, 0])) == {-1024}
    assert set(np.unique(volume.hu[:, 1:])) == {30}


def test_declared_padding_becomes_air_even_with_the_wrong_sign(
    tmp_path: Path, write_ct_series: WriteSeries, tolerant_pydicom: None
) -> None:
    hu = np.full((3, 8, 8), 30.0)
    hu[:, 0], hu[:, 1] = -1100, -1090

    def declare(dataset: Dataset, index: int) -> None:
        dataset.add_new("PixelPaddingValue", "US", 65536 - 1100)
        dataset.add_new("PixelPaddingRangeLimit", "SS", -1090)

    write_ct_series(tmp_path / "s", hu, signed=True, intercept=0, bits_stored=16, change=declare)
    volume = read_scan(tmp_path / "s").volume
    assert set(np.unique(volume.hu[:, :2])) == {-1024}
    assert set(np.unique(volume.hu[:, 2:])) == {30}


def test_very_high_padding_becomes_air(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    hu = np.full((3, 8, 8), 30.0)
    hu[:, 0] = 64000 - 1024

    def declare(dataset: Dataset, index: int) -> None:
        dataset.PixelPaddingValue = 64000

    write_ct_series(tmp_path / "s", hu, bits_stored=16, change=declare)
    volume = read_scan(tmp_path / "s").volume
    assert volume.hu.dtype == np.int16
    assert set(np.unique(volume.hu[:, 0])) == {-1024}


def test_padding_declared_as_a_tissue_is_left_alone_and_said(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    def declare(dataset: Dataset, index: int) -> None:
        dataset.PixelPaddingValue = 1024

    write_ct_series(tmp_path / "s", np.zeros((3, 8, 8)), change=declare)
    scan = read_scan(tmp_path / "s")
    assert not scan.volume.hu.any()
    assert any("0 HU, a tissue value" in warning for warning in scan.warnings)


ORIENTATIONS = {
    "usual": (1, 0, 0, 0, 1, 0),
    "upside down": (1, 0, 0, 0, -1, 0),
    "mirrored": (-1, 0, 0, 0, 1, 0),
    "prone": (-1, 0, 0, 0, -1, 0),
    "quarter turn": CLOCKWISE,
    "slightly oblique": (1, 0, 0, 0, 0.996195, 0.087156),
}


@pytest.mark.parametrize("name", ORIENTATIONS)
def test_simpleitk_sees_the_same_voxel_at_the_same_place(
    tmp_path: Path, write_ct_series: WriteSeries, hu: NDArray[np.int16], name: str
) -> None:
    files = write_ct_series(
        tmp_path / "s", hu, spacing_mm=(2.5, 0.75, 0.5), orientation=ORIENTATIONS[name]
    )
    volume = read_scan(tmp_path / "s").volume
    image = SimpleITK.ReadImage([str(path) for path in files])
    for index_zyx in ((0, 0, 0), (3, 39, 51), (1, 2, 17)):
        index = tuple(min(i, n - 1) for i, n in zip(index_zyx, volume.shape, strict=True))
        position = volume.grid.position_xyz_mm(index)
        there = image.TransformPhysicalPointToContinuousIndex(position)
        np.testing.assert_allclose(there, np.rint(there), atol=1e-3)
        assert image[[round(i) for i in there]] == volume.hu[index]
    assert np.diag(np.asarray(volume.grid.direction)).min() > 0.9


@pytest.mark.parametrize("name", ORIENTATIONS)
def test_stored_order_leads_back_to_the_stored_pixels(
    tmp_path: Path, write_ct_series: WriteSeries, hu: NDArray[np.int16], name: str
) -> None:
    write_ct_series(tmp_path / "s", hu, orientation=ORIENTATIONS[name])
    scan = read_scan(tmp_path / "s")
    np.testing.assert_array_equal(scan.stored.to_volume(scan.stored.to_stored(scan.volume.hu)),
                                  scan.volume.hu)  # fmt: skip
    check_against_datasets(scan)


def check_against_datasets(scan: Scan) -> None:
    stored = scan.stored.to_stored(scan.volume.hu)
    datasets = list(scan.datasets(pixels=True))
    assert len(datasets) == len(stored)
    for slice_hu, dataset in zip(stored, datasets, strict=True):
        np.testing.assert_array_equal(
            slice_hu, dataset.pixel_array.astype(int) + dataset.RescaleIntercept
        )
    heights = [dataset.ImagePositionPatient[2] for dataset in scan.datasets()]
    assert heights == sorted(heights)
    assert all("PixelData" not in dataset for dataset in scan.datasets())


def test_files_ascend_with_z_and_names_do_not_matter(
    tmp_path: Path, write_ct_series: WriteSeries, hu: NDArray[np.int16]
) -> None:
    files = write_ct_series(tmp_path / "s" / "a" / "b", hu)
    for path in files:
        path.rename(path.with_suffix("" if "2" in path.stem[-4:] else ".img"))
    (tmp_path / "s" / "notes.txt").write_text("not an image")
    (tmp_path / "s" / "._IM-0001-0001.dcm").write_bytes(b"\0" * 4096)
    (tmp_path / "s" / "DICOMDIR").write_bytes(b"\0" * 128 + b"DICM junk")
    scan = read_scan(tmp_path / "s")
    np.testing.assert_array_equal(scan.volume.hu, hu)
    assert len(scan.files) == len(hu)
    assert scan.warnings == ()
    check_against_datasets(scan)


def test_a_file_without_preamble_is_read(
    tmp_path: Path, write_ct_series: WriteSeries, hu: NDArray[np.int16]
) -> None:
    for path in write_ct_series(tmp_path / "s", hu):
        dataset = pydicom.dcmread(path)
        dataset.file_meta = FileMetaDataset()
        dataset.preamble = None
        pydicom.dcmwrite(path, dataset, implicit_vr=True, little_endian=True)
        assert path.read_bytes()[128:132] != b"DICM"
    np.testing.assert_array_equal(read_scan(tmp_path / "s").volume.hu, hu)


def test_a_named_file_is_that_one_slice(
    tmp_path: Path, write_ct_series: WriteSeries, hu: NDArray[np.int16]
) -> None:
    files = write_ct_series(tmp_path / "s", hu)
    scan = read_scan(files[2])
    np.testing.assert_array_equal(scan.volume.hu, hu[2:3])
    assert scan.volume.spacing_mm[0] == 3.0
    assert scan.volume.grid.origin_xyz_mm == (-10.0, -20.0, 106.0)
    assert scan.warnings == ("only one slice, taken to be 3 mm thick",)
    check_against_datasets(scan)


def test_one_slice_of_unknown_thickness_is_refused(
    tmp_path: Path, write_ct_series: WriteSeries
) -> None:
    def forget(dataset: Dataset, index: int) -> None:
        del dataset.SliceThickness

    files = write_ct_series(tmp_path / "s", num_slices=1, change=forget)
    with pytest.raises(ProdmError, match="one slice of unknown thickness"):
        read_scan(files[0])


def test_the_header_is_reported(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    def contrast(dataset: Dataset, index: int) -> None:
        dataset.ContrastBolusAgent = "made-up agent"

    write_ct_series(tmp_path / "s", change=contrast)
    scan = read_scan(tmp_path / "s")
    assert (scan.kvp, scan.slice_thickness_mm, scan.contrast_agent) == (120, 3, "made-up agent")
    assert scan.description == "Series 1"
    assert scan.is_dicom
    assert not scan.series_uid_made


def zip_folder(folder: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder.parent))
    return archive


def test_a_zip_reads_like_its_folder(
    tmp_path: Path, write_ct_series: WriteSeries, hu: NDArray[np.int16]
) -> None:
    write_ct_series(tmp_path / "s", hu, orientation=CLOCKWISE)
    folder = read_scan(tmp_path / "s")
    zipped = read_scan(zip_folder(tmp_path / "s", tmp_path / "s.zip"))
    np.testing.assert_array_equal(zipped.volume.hu, folder.volume.hu)
    assert zipped.volume.grid == folder.volume.grid
    assert zipped.files == (tmp_path / "s.zip",)
    assert len(zipped.members) == len(hu)
    check_against_datasets(zipped)


def enhanced(path: Path, hu: NDArray[np.int16], order: list[int], *, shared: bool) -> None:
    """Write an enhanced CT object whose frame n is slice ``order[n]``."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = EnhancedCTImageStorage
    dataset.SOPInstanceUID = "1.2.3.4"
    dataset.file_meta.MediaStorageSOPInstanceUID = pydicom.uid.UID("1.2.3.4")
    dataset.SeriesInstanceUID, dataset.Modality = "1.2.3", "CT"
    dataset.NumberOfFrames, dataset.Rows, dataset.Columns = hu.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 16, 15
    dataset.PixelRepresentation = 0
    common, frames = Dataset(), []
    for index in order:
        own = Dataset()
        own.PlanePositionSequence = Sequence([Dataset()])
        own.PlanePositionSequence[0].ImagePositionPatient = [-5.0, -6.0, 100 + 2.5 * index]
        place = common if shared else own
        place.PlaneOrientationSequence = Sequence([Dataset()])
        place.PlaneOrientationSequence[0].ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        place.PixelMeasuresSequence = Sequence([Dataset()])
        place.PixelMeasuresSequence[0].PixelSpacing = [0.75, 0.5]
        place.PixelMeasuresSequence[0].SliceThickness = 2.5
        place.PixelValueTransformationSequence = Sequence([Dataset()])
        place.PixelValueTransformationSequence[0].RescaleSlope = 1
        place.PixelValueTransformationSequence[0].RescaleIntercept = -1024
        place.PixelValueTransformationSequence[0].RescaleType = "HU"
        frames.append(own)
    dataset.SharedFunctionalGroupsSequence = Sequence([common])
    dataset.PerFrameFunctionalGroupsSequence = Sequence(frames)
    dataset.PixelData = (hu[order].astype(np.int32) + 1024).astype(np.uint16).tobytes()
    dataset.save_as(path, enforce_file_format=True)


@pytest.mark.parametrize("shared", [False, True], ids=["per frame", "shared"])
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "JPEG-LS"])
def test_enhanced_frames_are_placed_by_position(
    tmp_path: Path, hu: NDArray[np.int16], shared: bool, compressed: bool
) -> None:
    order = [2, 0, 3, 1]
    enhanced(tmp_path / "e.dcm", hu, order, shared=shared)
    if compressed:
        recode(tmp_path / "e.dcm", JPEGLSLossless)
    scan = read_scan(tmp_path / "e.dcm")
    np.testing.assert_array_equal(scan.volume.hu, hu)
    assert scan.volume.spacing_mm == (2.5, 0.75, 0.5)
    assert scan.volume.grid.origin_xyz_mm == (-5, -6, 100)
    assert [order[frame] for frame in scan.frame_indices] == [0, 1, 2, 3]
    (dataset,) = scan.datasets(pixels=True)
    frames = dataset.pixel_array[list(scan.frame_indices)].astype(int) - 1024
    np.testing.assert_array_equal(frames, scan.stored.to_stored(scan.volume.hu))


def test_enhanced_object_in_a_zip(tmp_path: Path, hu: NDArray[np.int16]) -> None:
    (tmp_path / "e").mkdir()
    enhanced(tmp_path / "e" / "e.dcm", hu, [3, 2, 1, 0], shared=True)
    scan = read_scan(zip_folder(tmp_path / "e", tmp_path / "e.zip"))
    np.testing.assert_array_equal(scan.volume.hu, hu)
    assert scan.members == ("e/e.dcm",)
    assert len(list(scan.datasets())) == 1


def test_an_enhanced_object_must_place_each_frame(tmp_path: Path, hu: NDArray[np.int16]) -> None:
    enhanced(tmp_path / "e.dcm", hu, [0, 1, 2, 3], shared=True)
    dataset = pydicom.dcmread(tmp_path / "e.dcm")
    del dataset.PerFrameFunctionalGroupsSequence[-1]
    dataset.save_as(tmp_path / "e.dcm")
    with pytest.raises(ProdmError, match="4 frames but describes the place of 3"):
        read_scan(tmp_path / "e.dcm")


def test_absurd_claims_are_refused_before_anything_is_allocated(
    tmp_path: Path, write_ct_series: WriteSeries, hu: NDArray[np.int16]
) -> None:
    def grow(dataset: Dataset, index: int) -> None:
        dataset.Rows = dataset.Columns = 65535

    write_ct_series(tmp_path / "s", change=grow)
    with pytest.raises(ProdmError, match="too many for a CT scan"):
        read_scan(tmp_path / "s")
    enhanced(tmp_path / "e.dcm", hu, [0, 1, 2, 3], shared=True)
    dataset = pydicom.dcmread(tmp_path / "e.dcm")
    dataset.NumberOfFrames = 2_000_000_000
    dataset.save_as(tmp_path / "e.dcm")
    with pytest.raises(ProdmError, match="absurd"):
        read_scan(tmp_path / "e.dcm")


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, JPEGLSLossless, RLELossless])
def test_cut_pixel_data_name_the_file(
    tmp_path: Path, write_ct_series: WriteSeries, hu: NDArray[np.int16], syntax: pydicom.uid.UID
) -> None:
    files = write_ct_series(tmp_path / "s", hu)
    for path in files:
        recode(path, syntax)
    files[1].write_bytes(files[1].read_bytes()[:-200])
    with pytest.raises(ProdmError, match=f"{files[1].name} has damaged pixel data"):
        read_scan(tmp_path / "s")


def test_a_file_that_ends_before_its_pixels_is_named(
    tmp_path: Path, write_ct_series: WriteSeries, hu: NDArray[np.int16]
) -> None:
    files = write_ct_series(tmp_path / "s", hu)
    content = files[1].read_bytes()
    files[1].write_bytes(content[: content.index(b"\xe0\x7f\x10\x00")])
    with pytest.raises(ProdmError, match=f"{files[1].name} has no pixel data"):
        read_scan(tmp_path / "s")


def test_a_file_that_ends_in_its_header_is_named(
    tmp_path: Path, write_ct_series: WriteSeries, hu: NDArray[np.int16]
) -> None:
    files = write_ct_series(tmp_path / "s", hu)
    files[1].write_bytes(files[1].read_bytes()[:500])
    with pytest.raises(ProdmError, match=f"{files[1].name} is a damaged DICOM file"):
        read_scan(tmp_path / "s")


def test_damaged_pixels_give_no_traceback(
    tmp_path: Path, write_ct_series: WriteSeries, capfd: pytest.CaptureFixture[str]
) -> None:
    files = write_ct_series(tmp_path / "s")
    for path in files:
        dataset = pydicom.dcmread(path)
        dataset.file_meta.TransferSyntaxUID = pydicom.uid.JPEGLosslessSV1
        dataset.PixelData = pydicom.encaps.encapsulate([b"\xff\xd8 no picture \xff\xd9" * 20])
        dataset["PixelData"].VR = "OB"
        dataset["PixelData"].is_undefined_length = True
        dataset.save_as(path)
    with pytest.raises(ProdmError, match="damaged pixel data"):
        read_scan(tmp_path / "s")
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_a_scan_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ProdmError, match="there is no file or folder"):
        read_scan(tmp_path / "nowhere")


def test_reading_does_not_import_torch(tmp_path: Path, write_ct_series: WriteSeries) -> None:
    write_ct_series(tmp_path / "s")
    code = (
        "import sys, pathlib; from prodm.files.scans import read_scan;"
        f"read_scan(pathlib.Path({str(tmp_path / 's')!r})); assert 'torch' not in sys.modules"
    )
    import sys

    subprocess.run([sys.executable, "-c", code], check=True)
