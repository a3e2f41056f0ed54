"""Lesions as SEG and scores as reports: read back by highdicom, checked by dciodvfy."""

import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import highdicom
import numpy as np
import pydicom
import pytest
from highdicom import sr
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes

from prodm.calcium import Vessel
from prodm.errors import ProdmError
from prodm.files.annotations import write_lesion_seg, write_score_report
from prodm.files.masks import read_mask
from prodm.files.scans import Scan, read_scan

WriteSeries = Callable[..., list[Path]]
SCORE: Mapping[str, Any] = {
    "agatston": 123.45678901234567,
    "volume_mm3": 99.75,
    "mass_mg": 17.5,
    "grade": "moderate",
    "rule": {"name": "calciumscoring-jl", "threshold_hu": 130.0, "min_area_mm2": 1.0},
    "region": {"source": "found", "voxels": 1000},
    "per_vessel": {"LAD": 100.0, "RCA": 23.45678901234567, "UNSPECIFIED": 0.0},
    "lesions": [{"vessel": "LAD"}, {"vessel": "LAD"}, {"vessel": "RCA"}],
}


@pytest.fixture
def scan(tmp_path: Path, write_ct_series: WriteSeries) -> Scan:
    write_ct_series(tmp_path / "ct")
    return read_scan(tmp_path / "ct")


def labels_for(scan: Scan, vessels: tuple[Vessel, ...]) -> NDArray[np.uint8]:
    """Give each vessel a block of its own in two slices, off the diagonal of every axis."""
    labels = np.zeros(scan.volume.shape, dtype=np.uint8)
    for number, vessel in enumerate(vessels):
        labels[1 + number % 2 : 3 + number % 2, 3:5, 2 + 4 * number : 5 + 4 * number] = vessel
    return labels


def write_seg(scan: Scan, labels: NDArray[np.uint8], path: Path) -> Path:
    written = write_lesion_seg(
        scan, labels, path, description="calcium", algorithm="threshold 130 HU"
    )
    assert written is not None
    return written


@pytest.mark.parametrize(
    "vessels",
    [tuple(Vessel), (Vessel.RCA,), (Vessel.LCX, Vessel.UNSPECIFIED), (Vessel.UNSPECIFIED,)],
)
def test_lesions_come_back_with_their_vessels(
    tmp_path: Path, scan: Scan, vessels: tuple[Vessel, ...]
) -> None:
    labels = labels_for(scan, vessels)
    path = write_seg(scan, labels, tmp_path / "seg.dcm")
    np.testing.assert_array_equal(read_mask(path, scan.volume.grid), labels)
    seg = highdicom.seg.segread(path)
    assert seg.number_of_segments == len(vessels)
    for segment, vessel in zip(seg.SegmentSequence, vessels, strict=True):
        assert segment.SegmentLabel == vessel.name
        assert segment.SegmentedPropertyTypeCodeSequence[0].CodeMeaning == (
            "pathologic calcification"
        )
        region = segment.AnatomicRegionSequence[0]
        assert region.CodingSchemeDesignator == "SCT"
        assert region.CodeMeaning.lower().endswith("coronary artery")


@pytest.mark.parametrize("orientation", [(-1, 0, 0, 0, -1, 0), (0, 1, 0, 1, 0, 0)])
def test_a_third_party_reader_finds_lesions_at_the_same_place(
    tmp_path: Path, write_ct_series: WriteSeries, orientation: tuple[int, ...]
) -> None:
    write_ct_series(tmp_path / "ct", orientation=orientation)
    scan = read_scan(tmp_path / "ct")
    labels = labels_for(scan, (Vessel.LAD, Vessel.RCA))
    path = write_seg(scan, labels, tmp_path / "seg.dcm")
    volume = highdicom.seg.segread(path).get_volume(combine_segments=True)
    found = [
        volume.map_indices_to_reference(np.argwhere(volume.array == number)) for number in (1, 2)
    ]
    for positions, vessel in zip(found, (Vessel.LAD, Vessel.RCA), strict=True):
        expected = [
            scan.volume.grid.position_xyz_mm(index.tolist())
            for index in np.argwhere(labels == vessel)
        ]
        assert sorted(map(tuple, np.round(positions, 3).tolist())) == sorted(
            tuple(round(x, 3) for x in position) for position in expected
        )


def test_lesions_and_report_belong_to_the_study_and_name_their_images(
    tmp_path: Path, scan: Scan
) -> None:
    labels = labels_for(scan, (Vessel.LAD,))
    source = next(scan.datasets())
    seg = pydicom.dcmread(write_seg(scan, labels, tmp_path / "seg.dcm"))
    report = pydicom.dcmread(write_score_report(scan, SCORE, tmp_path / "sr.dcm"))
    for dataset in (seg, report):
        for keyword in ("PatientName", "PatientID", "PatientSex", "StudyInstanceUID", "StudyDate"):
            assert dataset[keyword] == source[keyword], keyword
        assert dataset.SeriesInstanceUID != source.SeriesInstanceUID
        assert dataset.SeriesNumber > source.SeriesNumber
        assert "research use only" in dataset.SeriesDescription
    assert seg.FrameOfReferenceUID == source.FrameOfReferenceUID
    referenced = {
        item.ReferencedSOPInstanceUID
        for series in seg.ReferencedSeriesSequence
        for item in series.ReferencedInstanceSequence
    }
    assert referenced == {dataset.SOPInstanceUID for dataset in scan.datasets()}
    evidence = report.CurrentRequestedProcedureEvidenceSequence[0].ReferencedSeriesSequence[0]
    assert evidence.SeriesInstanceUID == source.SeriesInstanceUID
    assert len(evidence.ReferencedSOPSequence) == 5


def test_a_mask_without_lesions_writes_nothing(tmp_path: Path, scan: Scan) -> None:
    labels = np.zeros(scan.volume.shape, dtype=np.uint8)
    path = tmp_path / "seg.dcm"
    assert write_lesion_seg(scan, labels, path, description="c", algorithm="t") is None
    assert not path.exists()


def test_a_mask_of_another_shape_and_unknown_labels_are_refused(tmp_path: Path, scan: Scan) -> None:
    with pytest.raises(ProdmError, match="but the mask"):
        write_seg(scan, np.ones((2, 2, 2), np.uint8), tmp_path / "seg.dcm")
    with pytest.raises(ProdmError, match="0 to 5, got 6"):
        write_seg(scan, np.full(scan.volume.shape, 6, np.uint8), tmp_path / "seg.dcm")


def values(group: Any) -> dict[str, float]:  # noqa: ANN401
    return {
        measurement.name.meaning: float(measurement.value)
        for measurement in group.get_measurements()
    }


def test_the_report_holds_every_score_under_its_code(tmp_path: Path, scan: Scan) -> None:
    path = write_score_report(
        scan, SCORE, tmp_path / "sr.dcm", interval=(80.0, 190.5), model="compact"
    )
    report = sr.srread(path).content
    total, *vessels = report.get_image_measurement_groups()
    assert values(total) == pytest.approx(
        {
            "Coronary artery calcium score": 123.456789012346,
            "Calcium Volume": 99.75,
            "Calcium Mass": 17.5,
            "Number of calcifications": 3,
            "Agatston Score Threshold": 130,
            "Agatston score, lower end of the 90 % interval": 80,
            "Agatston score, upper end of the 90 % interval": 190.5,
        },
        rel=1e-12,
    )
    agatston = total.get_measurements(name=codes.SCT.CoronaryArteryCalciumScore)[0]
    assert agatston.method.meaning == "Agatston scoring method"
    evaluations = {
        item.name.meaning: item.value.meaning for item in total.get_qualitative_evaluations()
    }
    assert evaluations == {
        "Grade of coronary calcium": "moderate",
        "Scoring rule": "calciumscoring-jl",
        "Origin of the scored region": "found",
        "Intended use": "research use only",
    }
    found = {
        group.finding_sites[0].value.meaning: tuple(values(group).values()) for group in vessels
    }
    assert found == {
        "Left Anterior Descending Coronary Artery": (100, 2),
        "Right Coronary Artery": (pytest.approx(23.4567890123457), 1),
        "Coronary artery": (0, 0),
    }
    assert "model compact" in str(pydicom.dcmread(path))


def test_a_score_without_mass_or_interval_has_none_in_its_report(
    tmp_path: Path, scan: Scan
) -> None:
    score = {**SCORE, "mass_mg": None, "agatston": 0.0, "per_vessel": {}, "lesions": []}
    report = sr.srread(write_score_report(scan, score, tmp_path / "sr.dcm")).content
    (total,) = report.get_image_measurement_groups()
    assert list(values(total)) == [
        "Coronary artery calcium score",
        "Calcium Volume",
        "Number of calcifications",
        "Agatston Score Threshold",
    ]


def test_scores_that_are_not_numbers_are_refused(tmp_path: Path, scan: Scan) -> None:
    with pytest.raises(ProdmError, match="finite scores only"):
        write_score_report(scan, {**SCORE, "agatston": float("nan")}, tmp_path / "sr.dcm")


def test_the_same_input_gives_the_same_bytes_and_another_one_other_uids(
    tmp_path: Path, scan: Scan
) -> None:
    labels = labels_for(scan, (Vessel.LAD, Vessel.RCA))
    segs = [write_seg(scan, labels, tmp_path / f"seg{n}.dcm") for n in range(2)]
    reports = [write_score_report(scan, SCORE, tmp_path / f"sr{n}.dcm") for n in range(2)]
    for first, second in (segs, reports):
        assert first.read_bytes() == second.read_bytes()
    other_seg = write_seg(scan, labels[:, ::-1].copy(), tmp_path / "seg2.dcm")
    other_report = write_score_report(scan, SCORE, tmp_path / "sr2.dcm", model="other")
    for first, other in ((segs[0], other_seg), (reports[0], other_report)):
        a, b = pydicom.dcmread(first), pydicom.dcmread(other)
        assert a.SOPInstanceUID != b.SOPInstanceUID
        assert a.SeriesInstanceUID != b.SeriesInstanceUID


def _odd(dataset: Dataset, index: int) -> None:
    """Edit an image the way de-identified data sets are."""
    for keyword in (
        *("StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID", "StudyID"),
        *("PatientBirthDate", "AccessionNumber", "ContentDate", "ContentTime", "StudyTime"),
    ):
        del dataset[keyword]
    dataset.PatientName = "Müller"
    dataset.PatientSex = "U"
    dataset.StudyDescription = "Thorax für Übung"
    dataset.StudyDate = "00010101"
    dataset.PositionReferenceIndicator = ""


@pytest.mark.usefixtures("tolerant_pydicom")
@pytest.mark.parametrize("change", [None, _odd])
def test_dciodvfy_finds_no_error_that_the_input_had_not(
    tmp_path: Path,
    write_ct_series: WriteSeries,
    dciodvfy_errors: Callable[[Path], set[str]],
    change: Callable[[Dataset, int], None] | None,
) -> None:
    sources = write_ct_series(tmp_path / "ct", change=change)
    scan = read_scan(tmp_path / "ct")
    labels = labels_for(scan, tuple(Vessel))
    seg = write_seg(scan, labels, tmp_path / "seg.dcm")
    report = write_score_report(scan, SCORE, tmp_path / "sr.dcm", interval=(1, 2), model="m")
    for path in (seg, report):
        assert dciodvfy_errors(path) <= dciodvfy_errors(sources[0])
    if change is not None:
        new = pydicom.dcmread(seg)
        assert (str(new.PatientName), new.PatientSex) == ("Müller", "U")
        assert new.StudyDescription == "Thorax für Übung"
        assert new.StudyInstanceUID == pydicom.dcmread(report).StudyInstanceUID
        np.testing.assert_array_equal(read_mask(seg, scan.volume.grid), labels)


def test_lesions_of_an_enhanced_image_lie_on_their_frames(
    tmp_path: Path,
    write_enhanced_ct: Callable[..., Path],
    dciodvfy_errors: Callable[[Path], set[str]],
) -> None:
    source = write_enhanced_ct(tmp_path / "enhanced.dcm")
    scan = read_scan(source)
    labels = labels_for(scan, (Vessel.LCX, Vessel.LM))
    seg = write_seg(scan, labels, tmp_path / "seg.dcm")
    np.testing.assert_array_equal(read_mask(seg, scan.volume.grid), labels)
    report = write_score_report(scan, SCORE, tmp_path / "sr.dcm")
    for path in (seg, report):
        assert dciodvfy_errors(path) <= dciodvfy_errors(source)


def test_a_failed_write_leaves_nothing_and_an_existing_file_is_kept(
    tmp_path: Path, scan: Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sr.dcm"
    path.write_text("mine")
    with pytest.raises(ProdmError, match="exists already"):
        write_score_report(scan, SCORE, path)
    assert path.read_text() == "mine"

    def full(dataset: Dataset, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("prodm.files.annotations.save", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ProdmError, match="No space left"):
        write_score_report(scan, SCORE, tmp_path / "new.dcm")
    assert sorted(tmp_path.iterdir()) == before
