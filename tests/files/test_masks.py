"""Masks: labels, grids that differ, DICOM SEG placed by position."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import highdicom
import nibabel
import nrrd
import numpy as np
import pydicom
import pytest
import SimpleITK
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code

from prodm.errors import ProdmError
from prodm.files.masks import read_mask
from prodm.files.nifti import write_nifti_mask
from prodm.files.scans import Scan, read_scan
from prodm.volume import Grid, Volume

WriteSeries = Callable[..., list[Path]]
GRID = Grid((4, 6, 8), (3.0, 0.5, 0.5), (-10.0, -20.0, 100.0))


def labels_of(*values: int) -> NDArray[np.uint8]:
    labels = np.zeros(GRID.shape, np.uint8)
    for number, value in enumerate(values):
        labels[number % 4, 1 + number, 2:5] = value
    return labels


def test_labels_come_back(tmp_path: Path) -> None:
    labels = labels_of(1, 2, 3, 4, 5)
    write_nifti_mask(tmp_path / "m.nii.gz", labels, GRID)
    read = read_mask(tmp_path / "m.nii.gz", GRID)
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, labels)


@pytest.mark.parametrize("value", [1, 255])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float64])
def test_a_binary_mask_is_all_unspecified(
    tmp_path: Path, value: int, dtype: type[np.generic]
) -> None:
    labels = labels_of(value).transpose(2, 1, 0).astype(dtype)
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ GRID.affine
    nibabel.save(nibabel.Nifti1Image(labels, affine), tmp_path / "m.nii")
    read = read_mask(tmp_path / "m.nii", GRID)
    np.testing.assert_array_equal(read, np.where(labels_of(value), 5, 0))


def test_an_empty_and_a_full_mask_are_masks(tmp_path: Path) -> None:
    for value, expected in ((0, 0), (1, 5), (3, 3)):
        write_nifti_mask(tmp_path / "m.nii", np.full(GRID.shape, value), GRID)
        assert np.unique(read_mask(tmp_path / "m.nii", GRID)) == [expected]


@pytest.mark.parametrize(
    ("values", "wrong"), [((1, 6), "6"), ((2, 255), "255"), ((1, 2, 100), "100")]
)
def test_unknown_labels_are_refused(tmp_path: Path, values: tuple[int, ...], wrong: str) -> None:
    write_nifti_mask(tmp_path / "m.nii", labels_of(*values), GRID)
    with pytest.raises(ProdmError, match=f"holds the label {wrong}; labels are 1 LAD"):
        read_mask(tmp_path / "m.nii", GRID)


@pytest.mark.parametrize(("value", "sentence"), [(0.5, "fractions"), (np.nan, "fractions"),
                                                 (-1, "holds the label -1")])  # fmt: skip
def test_values_that_are_no_labels_are_refused(tmp_path: Path, value: float, sentence: str) -> None:
    values = np.zeros(GRID.shape[::-1], np.float32)
    values[0, 0, 0] = value
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / "m.nii")
    with pytest.raises(ProdmError, match=sentence):
        read_mask(tmp_path / "m.nii", GRID)


@pytest.mark.parametrize(
    ("grid", "way"),
    [
        (Grid((4, 6, 8), (3.0, 0.5, 0.6), (-10, -20, 100)), r"its spacing is \(3, 0.5, 0.6\) mm"),
        (Grid((4, 6, 8), (3.0, 0.5, 0.5), (-10, -20, 103)), r"it lies \(0, 0, 3\) mm"),
        (Grid((4, 8, 6), (3.0, 0.5, 0.5), (-10, -20, 100)), r"it has \(4, 8, 6\) voxels"),
        (
            Grid((4, 6, 8), (3.0, 0.5, 0.5), (-10, -20, 100),
                 ((0.995, -0.0998749, 0), (0.0998749, 0.995, 0), (0, 0, 1))),
            "axes point in other directions",
        ),
    ],
    ids=["spacing", "place", "size", "direction"],
)  # fmt: skip
def test_another_grid_is_refused_with_the_difference(tmp_path: Path, grid: Grid, way: str) -> None:
    write_nifti_mask(tmp_path / "m.nii", np.zeros(grid.shape), grid)
    with pytest.raises(ProdmError, match=f"is not on the scan's grid: .*{way}"):
        read_mask(tmp_path / "m.nii", GRID)


@given(axes=st.permutations([0, 1, 2]), flips=st.tuples(*[st.booleans()] * 3))
@settings(max_examples=30, deadline=None)
def test_the_order_of_axes_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, axes: list[int], flips: tuple[bool, bool, bool]
) -> None:
    labels = labels_of(1, 2, 3, 4)
    turned = Volume(labels.astype(np.int16), GRID).transpose(axes)
    for axis, flip in enumerate(flips):
        turned = turned.flip(axis) if flip else turned
    path = tmp_path_factory.mktemp("turned") / "m.nii"
    write_nifti_mask(path, turned.hu, turned.grid)
    np.testing.assert_array_equal(read_mask(path, GRID), labels)
    write_nifti_mask(path, labels, GRID)
    np.testing.assert_array_equal(read_mask(path, turned.grid), turned.hu)


def test_an_nrrd_mask_of_another_program(tmp_path: Path) -> None:
    labels = labels_of(1, 3)
    image = SimpleITK.GetImageFromArray(labels)
    image.SetSpacing(GRID.spacing_mm[::-1])
    image.SetOrigin(GRID.origin_xyz_mm)
    SimpleITK.WriteImage(SimpleITK.DICOMOrient(image, "RAI"), str(tmp_path / "m.nrrd"))
    np.testing.assert_array_equal(read_mask(tmp_path / "m.nrrd", GRID), labels)
    assert nrrd.read_header(str(tmp_path / "m.nrrd"))["type"] == "unsigned char"


def segment(number: int, label: str) -> highdicom.seg.SegmentDescription:
    return highdicom.seg.SegmentDescription(
        segment_number=number,
        segment_label=label,
        segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
        segmented_property_type=Code("18115005", "SCT", "Pathologic calcification"),
        algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.MANUAL,
    )


def write_seg(
    path: Path, scan: Scan, masks: NDArray[Any], labels: list[str], kind: str = "BINARY"
) -> None:
    """Write masks [Z, Y, X, segment], in the scan's array order, as a DICOM SEG."""
    stored = scan.stored.to_stored(np.moveaxis(masks, -1, 0))
    pixels = np.moveaxis(stored, 0, -1)
    highdicom.seg.Segmentation(
        source_images=list(scan.datasets(pixels=True)),
        pixel_array=pixels[..., 0] if kind == "LABELMAP" else pixels,
        segmentation_type=kind,
        segment_descriptions=[segment(n, label) for n, label in enumerate(labels, start=1)],
        series_instance_uid="1.2.3.5",
        series_number=9,
        sop_instance_uid="1.2.3.6",
        instance_number=1,
        manufacturer="Made up",
        manufacturer_model_name="Made up",
        software_versions="1",
        device_serial_number="1",
        max_fractional_value=200,
    ).save_as(path)


@pytest.fixture(params=[(1, 0, 0, 0, 1, 0), (0, 1, 0, -1, 0, 0)], ids=["usual", "quarter turn"])
def scan(tmp_path: Path, write_ct_series: WriteSeries, request: pytest.FixtureRequest) -> Scan:
    write_ct_series(tmp_path / "s", orientation=request.param)
    return read_scan(tmp_path / "s")


def test_seg_segments_become_vessels(tmp_path: Path, scan: Scan) -> None:
    names = ["LAD", "Circumflex artery", "calc RCA", "Left main", "lesion 5"]
    masks = np.zeros((*scan.volume.shape, 5), np.uint8)
    for number in range(5):
        masks[number // 2 + 1, 2 + 3 * number : 4 + 3 * number, 5:9, number] = 1
    write_seg(tmp_path / "seg.dcm", scan, masks, names)
    labels = read_mask(tmp_path / "seg.dcm", scan.volume.grid)
    np.testing.assert_array_equal(labels, (masks * np.arange(1, 6)).max(axis=-1))
    frames = pydicom.dcmread(tmp_path / "seg.dcm").NumberOfFrames
    assert frames == 5  # empty frames were left out, and each was placed by its position


def test_a_labelmap_seg_is_read(tmp_path: Path, scan: Scan) -> None:
    masks = np.zeros((*scan.volume.shape, 1), np.uint8)
    masks[1, 3, 4], masks[2, 5, 6:9] = 1, 2
    write_seg(tmp_path / "seg.dcm", scan, masks, ["RCA", "lesion"], kind="LABELMAP")
    labels = read_mask(tmp_path / "seg.dcm", scan.volume.grid)
    expected = np.array([0, 3, 5])[masks[..., 0]]
    np.testing.assert_array_equal(labels, expected)


def test_a_fractional_seg_counts_from_one_half(tmp_path: Path, scan: Scan) -> None:
    masks = np.zeros((*scan.volume.shape, 1), np.float32)
    masks[1, 3, 4:8, 0] = 0.25, 0.495, 0.5, 1.0
    write_seg(tmp_path / "seg.dcm", scan, masks, ["LM"], kind="FRACTIONAL")
    labels = read_mask(tmp_path / "seg.dcm", scan.volume.grid)
    assert labels[1, 3, 4:8].tolist() == [0, 0, 4, 4]
    assert labels.sum() == 8


def test_a_named_artery_wins_over_an_unnamed_region(tmp_path: Path, scan: Scan) -> None:
    masks = np.zeros((*scan.volume.shape, 2), np.uint8)
    masks[1:4, 2:9, 2:9, 0] = 1
    masks[2, 4, 4, 1] = 1
    write_seg(tmp_path / "a.dcm", scan, masks, ["Heart", "LAD"])
    write_seg(tmp_path / "b.dcm", scan, masks[..., ::-1], ["LAD", "Heart"])
    for name in ("a.dcm", "b.dcm"):
        labels = read_mask(tmp_path / name, scan.volume.grid)
        assert labels[2, 4, 4] == 1
        assert (labels == 5).sum() == 3 * 7 * 7 - 1
    write_seg(tmp_path / "c.dcm", scan, masks, ["RCA", "LAD"])
    with pytest.raises(ProdmError, match="another segment gives to another artery"):
        read_mask(tmp_path / "c.dcm", scan.volume.grid)


@pytest.mark.parametrize(
    ("keywords", "value", "way"),
    [
        ("PlanePositionSequence.ImagePositionPatient", [-10.2, -20, 103], "between the scan's"),
        ("PlanePositionSequence.ImagePositionPatient", [-10, -20, 400], "reaches beyond"),
        ("PixelMeasuresSequence.PixelSpacing", [0.9, 0.9], "its pixels are 0.9 x 0.9 mm"),
        ("PlaneOrientationSequence.ImageOrientationPatient", [0.6, 0.8, 0, -0.8, 0.6, 0], "axes"),
        ("PlanePositionSequence.ImagePositionPatient", None, "does not say where it lies"),
    ],
    ids=["between", "outside", "spacing", "turned", "nowhere"],
)
def test_a_seg_on_another_grid_is_refused(
    tmp_path: Path, scan: Scan, keywords: str, value: list[float] | None, way: str
) -> None:
    masks = np.zeros((*scan.volume.shape, 1), np.uint8)
    masks[1, 3, 4] = 1
    write_seg(tmp_path / "seg.dcm", scan, masks, ["LAD"])
    dataset = pydicom.dcmread(tmp_path / "seg.dcm")
    sequence, keyword = keywords.split(".")
    for group in (
        dataset.PerFrameFunctionalGroupsSequence[0],
        dataset.SharedFunctionalGroupsSequence[0],
    ):
        if sequence in group:
            setattr(group[sequence].value[0], keyword, value)
    dataset.save_as(tmp_path / "seg.dcm")
    with pytest.raises(ProdmError, match=way):
        read_mask(tmp_path / "seg.dcm", scan.volume.grid)


def test_a_scan_is_not_a_mask(tmp_path: Path, scan: Scan) -> None:
    with pytest.raises(ProdmError, match=r"is DICOM but no segmentation \(SEG\)"):
        read_mask(scan.files[0], scan.volume.grid)
    with pytest.raises(ProdmError, match="folder of 5 files"):
        read_mask(tmp_path / "s", scan.volume.grid)
    with pytest.raises(ProdmError, match="there is no file"):
        read_mask(tmp_path / "none.nii", scan.volume.grid)


def test_a_seg_beside_its_scan_is_no_second_series(tmp_path: Path, scan: Scan) -> None:
    masks = np.ones((*scan.volume.shape, 1), np.uint8)
    write_seg(tmp_path / "s" / "seg.dcm", scan, masks, ["LAD"])
    assert read_scan(tmp_path / "s").volume.shape == scan.volume.shape
