"""A made-up COCA tree with the quirks of the real one: what is there is read, exactly."""

import plistlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from pydicom import config

from prodm.calcium import Vessel
from prodm.errors import ProdmError
from prodm.files import coca
from prodm.files.coca import (
    CocaRow,
    find_patient,
    is_coca,
    list_patients,
    read_gated,
    read_nongated,
    survey,
)
from prodm.files.coca_sheet import read_sheet
from prodm.files.coca_slices import read_slices
from prodm.files.coca_writer import (
    SHEET_HEADER,
    images_of_labels,
    write_gated,
    write_nongated,
    write_sheet,
    write_slices,
)
from prodm.files.scans import Scan
from prodm.volume import Grid, Volume

SHAPE = (6, 20, 24)
SPACING_MM = (3.0, 0.5, 0.5)
ORIGIN_XYZ_MM = (-10.0, -20.0, -150.5)
TRICKY_FOLDER = "Pro (Gated) CS 3.0_I30f 70%"


def still(shape: tuple[int, int, int] = SHAPE, seed: int = 0) -> Volume:
    """Soft tissue with two lesions that no mirror image of the scan shares."""
    hu = np.random.default_rng(seed).integers(0, 60, shape).astype(np.int16)
    hu[2, 4:6, 7:10] = [[210, 260, 140], [150, 290, 180]]
    hu[3, 12, 15:19] = [450, 131, 200, 300]
    return Volume(hu, Grid(shape, SPACING_MM, ORIGIN_XYZ_MM))


def drawn(volume: Volume) -> NDArray[np.uint8]:
    labels = np.zeros(volume.shape, dtype=np.uint8)
    labels[2][volume.hu[2] >= 130] = Vessel.LAD
    labels[3][volume.hu[3] >= 130] = Vessel.RCA
    return labels


def row(root: Path, identifier: str, scorer: coca.Scorer | None = None) -> CocaRow:
    return survey([find_patient(root, identifier)], scorer)[0]


def edit(path: Path, change: Callable[[pydicom.Dataset], None]) -> None:
    with config.disable_value_validation():
        dataset = pydicom.dcmread(path)
        change(dataset)
        dataset.save_as(path, enforce_file_format=False)


def edit_xml(root: Path, identifier: str, change: Callable[[list[dict[str, Any]]], None]) -> None:
    path = root / "Gated_release_final" / "calcium_xml" / f"{identifier}.xml"
    content = plistlib.loads(path.read_bytes())
    change(content["Images"])
    path.write_bytes(plistlib.dumps(content))


def count_calcium(scan: Scan, labels: NDArray[np.uint8]) -> tuple[float, dict[str, float]]:
    return float(np.count_nonzero(labels)), {}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """One good gated patient, 7, and one good non-gated scan, 7."""
    root = tmp_path / "cocacoronarycalciumandchestcts-2"
    volume = still()
    write_gated(root, "7", volume, drawn(volume), TRICKY_FOLDER)
    write_nongated(root, "7", volume)
    write_sheet(root, {"7A": (0, 12.5, 3, 4, 19.5)})
    return root


def test_a_gated_patient_comes_back_exactly(tree: Path) -> None:
    scan, labels = read_gated(find_patient(tree, "7"))
    volume = still()
    np.testing.assert_array_equal(scan.volume.hu, volume.hu)
    np.testing.assert_array_equal(labels, drawn(volume))
    assert labels.dtype == np.uint8
    assert volume.grid.mismatch(scan.volume.grid) is None
    assert [path.name for path in scan.files[:2]] == ["IM-0001-0006.dcm", "IM-0001-0005.dcm"]


def test_the_slices_have_the_quirks_of_the_real_ones(tree: Path) -> None:
    folder = tree / "Gated_release_final" / "patient" / "7" / TRICKY_FOLDER
    with config.disable_value_validation():
        first = pydicom.dcmread(folder / "IM-0001-0001.dcm")
        last = pydicom.dcmread(folder / "IM-0001-0006.dcm")
        assert not first.SeriesInstanceUID.is_valid
    assert first.ImagePositionPatient[2] > last.ImagePositionPatient[2]
    assert first.StudyDate == "00010101"
    assert first.RescaleIntercept == -1024


@settings(max_examples=25, deadline=None)
@given(labels=arrays(np.uint8, (2, 7, 8), elements=st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5])))
def test_any_label_volume_survives_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, labels: NDArray[np.uint8]
) -> None:
    root = tmp_path_factory.mktemp("coca")
    hu = np.where(labels > 0, 200 + 10 * labels.astype(np.int16), 40).astype(np.int16)
    volume = Volume(hu, Grid(hu.shape, (3.0, 0.390625, 0.390625), (0.0, 0.0, -801.3)))
    write_gated(root, "1", volume, labels)
    np.testing.assert_array_equal(read_gated(find_patient(root, "1"))[1], labels)


def test_the_fields_of_the_rois_alone_score_the_find_patient(tree: Path) -> None:
    """LAD: 6 pixels of 0.25 mm2, peak 290, weight 2. RCA: 4 pixels, peak 450, weight 4."""
    found = row(tree, "7", count_calcium)
    assert found.usable
    assert found.problem is None
    assert found.agatston_rois == pytest.approx(6 * 0.25 * 2 + 4 * 0.25 * 4)
    assert found.agatston == 10
    assert found.slices == 6
    assert found.spacing_mm == pytest.approx(SPACING_MM)


def test_thin_slices_count_for_less(tmp_path: Path) -> None:
    volume = Volume(still().hu, Grid(SHAPE, (2.5, 0.5, 0.5), ORIGIN_XYZ_MM))
    write_gated(tmp_path, "1", volume, drawn(volume))
    assert row(tmp_path, "1").agatston_rois == pytest.approx(7 * 2.5 / 3)


@pytest.mark.parametrize("part", ["..", ".", "Gated_release_final", "Gated_release_final/patient"])
def test_any_folder_of_the_gated_half_will_do(tree: Path, part: str) -> None:
    assert find_patient(tree / part, "7").xml is not None


@pytest.mark.parametrize("part", ["..", ".", "deidentified_nongated"])
def test_any_folder_of_the_other_half_will_do(tree: Path, part: str) -> None:
    assert find_patient(tree / part, "7", gated=False).sheet is not None


def test_a_sheet_beside_the_two_halves_is_found(tree: Path) -> None:
    sheet = tree / "deidentified_nongated" / "scores.xlsx"
    sheet.rename(tree / "scores.xlsx")
    assert [(p.id, p.gated) for p in list_patients(tree)] == [("7", True), ("7", False)]
    assert find_patient(tree, "7", gated=False).sheet is not None


def test_other_folders_are_refused(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProdmError, match="is no COCA folder: it needs Gated_release_final"):
        list_patients(tmp_path / "empty")
    with pytest.raises(ProdmError, match="there is no folder"):
        list_patients(tmp_path / "absent")
    shutil.copytree(tree, tmp_path / "copy")
    with pytest.raises(ProdmError, match="several COCA folders"):
        list_patients(tmp_path)
    (tmp_path / "bare" / "Gated_release_final" / "patient").mkdir(parents=True)
    with pytest.raises(ProdmError, match="there is no patient"):
        list_patients(tmp_path / "bare")
    assert is_coca(tree)
    assert not is_coca(tmp_path / "empty")
    with pytest.raises(ProdmError, match="there is no non-gated patient 8"):
        find_patient(tree, "8", gated=False)


def test_patients_are_listed_in_the_order_of_their_numbers(tree: Path) -> None:
    for identifier in ("10", "9", "x"):
        (tree / "Gated_release_final" / "patient" / identifier).mkdir()
    (tree / "Gated_release_final" / "patient" / ".DS_Store").touch()
    assert [p.id for p in list_patients(tree) if p.gated] == ["7", "9", "10", "x"]


def test_without_xml_there_is_no_annotation_unless_the_user_decides(tree: Path) -> None:
    (tree / "Gated_release_final" / "calcium_xml" / "7.xml").unlink()
    found = row(tree, "7", count_calcium)
    assert not found.usable
    assert found.agatston_rois is None
    assert found.agatston is None
    assert found.problem == "no annotation: there is no calcium_xml/7.xml"
    with pytest.raises(ProdmError, match="no annotation"):
        read_gated(find_patient(tree, "7"))
    decided = survey([find_patient(tree, "7")], count_calcium, missing_xml_is_zero=True)[0]
    assert decided.usable
    assert decided.agatston_rois == 0
    assert decided.agatston == 0


def test_an_xml_without_dicom_is_named(tree: Path) -> None:
    shutil.rmtree(tree / "Gated_release_final" / "patient" / "7")
    found = row(tree, "7")
    assert found.problem == "no DICOM for this annotation"
    assert found.agatston_rois == pytest.approx(7)
    with pytest.raises(ProdmError, match="no DICOM"):
        read_gated(find_patient(tree, "7"))
    (tree / "Gated_release_final" / "patient" / "7").mkdir()
    assert row(tree, "7").problem == "no DICOM image in its folder"


def test_two_series_at_the_same_z_are_named_and_not_chosen_from(tree: Path) -> None:
    second = tree / "Gated_release_final" / "patient" / "7" / "second (75%)"
    write_slices(second, "7", still(seed=1), invalid_uids=True)
    assert row(tree, "7").problem == "2 series at the same z (6 and 6 slices)"
    with pytest.raises(ProdmError, match="2 series at the same z"):
        read_gated(find_patient(tree, "7"))
    for path in list(second.iterdir())[2:]:
        path.unlink()
    problem = row(tree, "7").problem
    assert problem == "a partial second series at the same z (6 and 2 slices)"


def test_two_series_in_one_folder_are_told_apart_by_their_uids(tree: Path) -> None:
    folder = tree / "Gated_release_final" / "patient" / "7" / TRICKY_FOLDER
    for path in list(folder.iterdir()):
        copy = folder / path.name.replace("IM-0001", "IM-0002")
        shutil.copy(path, copy)
        edit(copy, lambda dataset: setattr(dataset, "SeriesInstanceUID", "1.2.3.04"))
    assert row(tree, "7").problem == "2 series at the same z (6 and 6 slices)"


def test_a_duplicated_z_is_named(tree: Path) -> None:
    folder = tree / "Gated_release_final" / "patient" / "7" / TRICKY_FOLDER
    shutil.copy(folder / "IM-0001-0002.dcm", folder / "IM-0001-0099.dcm")
    assert row(tree, "7").problem == "duplicated z: two slices at -138.5 mm"


def test_a_gap_is_named(tree: Path) -> None:
    folder = tree / "Gated_release_final" / "patient" / "7" / TRICKY_FOLDER
    (folder / "IM-0001-0002.dcm").unlink()
    problem = row(tree, "7").problem or ""
    assert problem.startswith("uneven slices: 6 mm from z -141.5 to -135.5 mm, 3 mm elsewhere")


def test_localizers_and_other_files_in_the_folder_do_not_matter(tree: Path) -> None:
    folder = tree / "Gated_release_final" / "patient" / "7" / TRICKY_FOLDER
    shutil.copy(folder / "IM-0001-0002.dcm", folder / "IM-0002-0001.dcm")
    edit(
        folder / "IM-0002-0001.dcm",
        lambda dataset: setattr(dataset, "ImageType", ["ORIGINAL", "PRIMARY", "LOCALIZER"]),
    )
    (folder / "Thumbs.db").write_bytes(b"thumbs")
    (folder / "._IM-0001-0001.dcm").write_bytes(b"resource fork")
    assert row(tree, "7", count_calcium).usable


def test_an_index_beyond_the_slices_is_named(tree: Path) -> None:
    edit_xml(tree, "7", lambda images: images[1].update(ImageIndex=6))
    expected = "the annotation's image index 6 lies beyond the 6 slices"
    assert row(tree, "7").problem == expected


def test_an_index_that_contradicts_z_is_named(tree: Path) -> None:
    edit_xml(tree, "7", lambda images: images[1].update(ImageIndex=1))
    assert "contradict each other" in (row(tree, "7").problem or "")


def test_a_z_that_matches_no_slice_is_named(tree: Path) -> None:
    def lift(images: list[dict[str, Any]]) -> None:
        roi = images[0]["ROIs"][0]
        roi["Point_mm"] = [point.replace("-144.5", "-143.2") for point in roi["Point_mm"]]

    edit_xml(tree, "7", lift)
    assert row(tree, "7").problem == "the annotation's z -143.2 mm matches no slice"


def test_an_roi_outside_the_image_is_named(tree: Path) -> None:
    def move(images: list[dict[str, Any]]) -> None:
        images[0]["ROIs"][0]["Point_px"][0] = "(700.000000, 3.000000)"

    edit_xml(tree, "7", move)
    assert row(tree, "7").problem == "an ROI of image 2 reaches beyond the image"


def test_empty_entries_and_an_empty_first_slice_do_not_matter(tree: Path) -> None:
    empty = {"NumberOfPoints": 0, "Point_px": [], "Point_mm": [], "Name": "1", "IndexInImage": 0}

    def add(images: list[dict[str, Any]]) -> None:
        images.insert(0, {"ImageIndex": 0, "NumberOfROIs": 1, "ROIs": [empty]})
        images.insert(0, {"ImageIndex": 0, "NumberOfROIs": 0, "ROIs": []})

    edit_xml(tree, "7", add)
    found = row(tree, "7", count_calcium)
    assert found.usable
    assert found.agatston == 10
    assert found.notes == ()


def test_dirty_names_become_unspecified_with_a_note(tree: Path) -> None:
    edit_xml(tree, "7", lambda images: images[0]["ROIs"][0].update(Name="555614876"))
    scan, labels = read_gated(find_patient(tree, "7"))
    assert set(np.unique(labels[2])) == {0, Vessel.UNSPECIFIED}
    note = "ROIs named '555614876' mean no vessel and are unspecified"
    assert note in scan.warnings
    assert row(tree, "7").notes == (note,)
    assert row(tree, "7").usable


def test_a_mask_beside_its_calcium_is_named(tree: Path) -> None:
    volume = still()
    beside: Any = images_of_labels(volume, np.roll(drawn(volume), 5, axis=1))

    def move(images: list[dict[str, Any]]) -> None:
        for image, moved in zip(images, beside, strict=True):
            points_px = moved["ROIs"][0]["Point_px"]
            points_mm = moved["ROIs"][0]["Point_mm"]
            image["ROIs"][0].update(
                Point_px=points_px, Point_mm=points_mm, NumberOfPoints=len(points_px)
            )

    edit_xml(tree, "7", move)
    assert row(tree, "7").usable  # headers alone cannot tell
    found = row(tree, "7", count_calcium)
    assert not found.usable
    assert (found.problem or "").startswith("bad mask: under 2 of 2 ROIs the image does not show")


def test_a_mask_of_another_series_is_named_by_its_values(tree: Path) -> None:
    edit_xml(tree, "7", lambda images: images[0]["ROIs"][0].update(Max=301.0))
    problem = row(tree, "7", count_calcium).problem or ""
    assert problem.startswith("bad mask: under 1 of 2 ROIs")


def test_a_mask_on_tissue_is_bad_even_where_its_fields_agree(tmp_path: Path) -> None:
    volume = still()
    labels = np.zeros(volume.shape, dtype=np.uint8)
    labels[4, 4:6, 4:9] = Vessel.LAD
    write_gated(tmp_path, "1", volume, labels)
    assert (row(tmp_path, "1", count_calcium).problem or "").startswith("bad mask: under 1 of 1")


def test_a_mask_far_larger_than_its_stated_area_is_named(tree: Path) -> None:
    edit_xml(tree, "7", lambda images: images[0]["ROIs"][0].update(Area=0.0025))  # one pixel
    assert (row(tree, "7", count_calcium).problem or "").startswith("bad mask: under 1 of 2")


def test_an_outline_around_no_pixel_is_no_calcium(tree: Path) -> None:
    def flatten(images: list[dict[str, Any]]) -> None:
        roi = images[0]["ROIs"][0]
        roi["Point_px"] = ["(7.5, 4.5)"] * roi["NumberOfPoints"]

    edit_xml(tree, "7", flatten)
    assert (row(tree, "7", count_calcium).problem or "").startswith("bad mask: under 1 of 2")


def test_a_speck_that_differs_is_only_a_note(tmp_path: Path) -> None:
    volume = still()
    hu = volume.hu.copy()
    hu[4, 2:14, 2:14] = 400
    labels = drawn(volume)
    labels[4, 2:14, 2:14] = Vessel.LCX
    write_gated(tmp_path, "1", volume.with_hu(hu), labels)
    edit_xml(tmp_path, "1", lambda images: images[0]["ROIs"][0].update(Max=301.0))
    found = row(tmp_path, "1", count_calcium)
    assert found.usable
    assert found.notes == ("1 of 3 ROIs differ from the image under them",)


def test_pixels_of_two_vessels_stay_with_the_first_and_are_counted(tree: Path) -> None:
    def draw_twice(images: list[dict[str, Any]]) -> None:
        copy = images[0]["ROIs"][0] | {"Name": "Left Circumflex Artery"}
        images[0]["ROIs"].append(copy)

    edit_xml(tree, "7", draw_twice)
    scan, labels = read_gated(find_patient(tree, "7"))
    np.testing.assert_array_equal(labels, drawn(still()))
    assert "6 pixels are drawn for two vessels; the first one counts" in scan.warnings


def test_slices_that_are_not_axial_are_named(tree: Path) -> None:
    folder = tree / "Gated_release_final" / "patient" / "7" / TRICKY_FOLDER
    for path in folder.iterdir():
        edit(path, lambda d: setattr(d, "ImageOrientationPatient", [-1, 0, 0, 0, -1, 0]))
    assert (row(tree, "7").problem or "").startswith("its slices are not axial")


def test_a_damaged_file_is_named_and_the_rest_goes_on(tree: Path) -> None:
    volume = still()
    folder = write_gated(tree, "8", volume, drawn(volume))
    write_gated(tree, "9", volume, drawn(volume))
    (folder / "IM-0001-0003.dcm").write_bytes(b"not dicom")
    (tree / "Gated_release_final" / "calcium_xml" / "9.xml").write_bytes(b"<plist>")
    rows = survey([p for p in list_patients(tree) if p.gated], count_calcium)
    assert [found.usable for found in rows] == [True, False, False]
    assert rows[1].problem == "IM-0001-0003.dcm is not a DICOM file"
    assert (rows[2].problem or "").startswith("9.xml is not a readable XML property list")


def test_truncated_pixels_are_found_when_scores_are_asked_for(tree: Path) -> None:
    folder = tree / "Gated_release_final" / "patient" / "7" / TRICKY_FOLDER
    path = folder / "IM-0001-0003.dcm"
    path.write_bytes(path.read_bytes()[:-100])
    assert row(tree, "7").usable
    found = row(tree, "7", count_calcium)
    assert not found.usable
    assert found.problem


@pytest.mark.parametrize(
    ("keyword", "value", "problem"),
    [
        ("Rows", 10, "its slices differ in rows and columns"),
        ("PixelSpacing", [0.7, 0.7], "its slices differ in pixel spacing"),
        ("ImageOrientationPatient", [0, 1, 0, 1, 0, 0], "its slices differ in orientation"),
        ("ImagePositionPatient", None, "IM-0001-0003.dcm has no ImagePositionPatient"),
        ("Modality", "PT", "IM-0001-0003.dcm is not CT but PT"),
        ("ImagePositionPatient", [5, -20, -141.5], "its slices do not lie above each other"),
    ],
)
def test_slices_that_do_not_belong_together_are_named(
    tree: Path, keyword: str, value: object, problem: str
) -> None:
    folder = tree / "Gated_release_final" / "patient" / "7" / TRICKY_FOLDER
    edit(folder / "IM-0001-0003.dcm", lambda dataset: setattr(dataset, keyword, value))
    assert row(tree, "7").problem == problem


def test_a_non_gated_scan_reads_without_uids_and_with_its_scores(tree: Path) -> None:
    found = find_patient(tree, "7", gated=False)
    scan = read_nongated(found)
    np.testing.assert_array_equal(scan.volume.hu, still().hu)
    line = survey([found])[0]
    assert line.usable
    assert line.sheet_total == 19.5
    assert line.per_vessel == {"LM": 0, "LAD": 12.5, "LCX": 3, "RCA": 4}
    assert line.agatston is None


def test_a_flattened_non_gated_scan_reads_too(tree: Path) -> None:
    write_nongated(tree, "8", still(), flat=True)
    np.testing.assert_array_equal(
        read_nongated(find_patient(tree, "8", gated=False)).volume.hu, still().hu
    )


def test_faults_of_the_sheet_are_named(tree: Path) -> None:
    for identifier in ("8", "9", "10", "11", "12"):
        write_nongated(tree, identifier, still())
    write_sheet(
        tree,
        {
            "7A": (0, 1, 2, 3, 6),
            "8A": (0, 1, 2, 3, 9),
            "9A": (0, 1, 2, 3, None),
            "10A": (0, 1, "n/a", 3, 4),
            "11A": (0, 1, 2, 3, 6),
            "11a": (0, 1, 2, 3, 6),
            "99A": (0, 1, 2, 3, 6),
        },
    )
    rows = {r.id: r for r in survey([p for p in list_patients(tree) if not p.gated])}
    assert {key: found.problem for key, found in rows.items()} == {
        "7": None,
        "8": "the sheet's total 9 is not the sum of its vessels, 6",
        "9": "the sheet states no total",
        "10": "the sheet's lcx is no score: 'n/a'",
        "11": "the sheet has several rows for 11a",
        "12": "no row for it in scores.xlsx",
        "99": "no DICOM for this row in the sheet",
    }
    assert rows["8"].sheet_total == 9
    with pytest.raises(ProdmError, match="no DICOM for this row"):
        read_nongated(find_patient(tree, "99", gated=False))


def test_a_broken_sheet_does_not_stop_the_gated_half(tree: Path) -> None:
    sheet = tree / "deidentified_nongated" / "scores.xlsx"
    sheet.write_bytes(b"PK not a workbook")
    rows = survey(list_patients(tree))
    assert [found.usable for found in rows] == [True, False]
    assert (rows[1].problem or "").startswith("scores.xlsx is not a readable Excel workbook")
    sheet.unlink()
    assert survey(list_patients(tree))[1].problem == "no scores.xlsx"


def test_a_sheet_without_its_columns_is_refused(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append(["filename", "LAD"])
    book.save(tmp_path / "scores.xlsx")
    book.close()
    with pytest.raises(ProdmError, match="'lca' is missing"):
        read_sheet(tmp_path / "scores.xlsx")
    assert SHEET_HEADER[0] == "filename "


def test_listing_opens_no_image_and_survey_without_scores_no_pixels(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a file was read")

    monkeypatch.setattr(coca, "read_scan", refuse)
    assert all(found.usable for found in survey(list_patients(tree)))
    monkeypatch.setattr(pydicom, "dcmread", refuse)
    assert len(list_patients(tree)) == 2


def test_inputs_are_never_changed(tree: Path) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    survey(list_patients(tree), count_calcium)
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


def test_progress_is_told_patient_by_find_patient(tree: Path) -> None:
    told: list[tuple[int, int]] = []
    survey(list_patients(tree), progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_the_writer_refuses_what_coca_cannot_hold(tmp_path: Path) -> None:
    volume = still()
    with pytest.raises(ProdmError, match=r"labels of calcium are 1 to 5, got 6"):
        images_of_labels(volume, np.full(volume.shape, 6, dtype=np.uint8))
    with pytest.raises(ProdmError, match="voxels but the labels"):
        images_of_labels(volume, np.zeros((1, 2, 3), dtype=np.uint8))
    low = volume.with_hu(np.full(volume.shape, -2000, dtype=np.int16))
    with pytest.raises(ProdmError, match="-1024 HU and more"):
        write_slices(tmp_path / "low", "1", low, invalid_uids=True)
    with pytest.raises(ProdmError, match="are axial"):
        write_slices(tmp_path / "turned", "1", volume.flip(1), invalid_uids=True)


def test_one_slice_is_no_scan(tmp_path: Path) -> None:
    volume = Volume(np.zeros((1, 4, 4), dtype=np.int16), Grid((1, 4, 4), SPACING_MM))
    write_slices(tmp_path / "one", "1", volume, invalid_uids=True)
    with pytest.raises(ProdmError, match="only one slice"):
        read_slices(tmp_path / "one")
