"""Lesions as a DICOM SEG and scores as a structured report (TID 1500), beside the scan.

Both belong to the scan's study and frame of reference and name its images as their source. The
SEG has one segment for each vessel that holds calcium, numbered upwards from 1 as DICOM asks;
its ``SegmentLabel`` is the name of the ``Vessel``. Concepts are those of DICOM and SNOMED CT;
where neither has one (grade, rule, ends of the interval) the private scheme 99PRODM has it.

Identity and dates follow ``prodm.files.provenance``. Where the source states no date at all,
1 January 1900 stands in, because both objects must carry one.
"""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import highdicom
import numpy as np
from highdicom import sr
from highdicom.seg import Segmentation, SegmentDescription
from numpy.typing import NDArray
from pydicom import config
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code

import prodm
from prodm.calcium import Vessel
from prodm.errors import ProdmError
from prodm.files.provenance import (
    PRIVATE_SCHEME,
    RESEARCH_ONLY,
    digest_of,
    plain_text,
    read_headers,
    save,
    series_description,
    series_number,
    stable_uid,
)
from prodm.files.scans import Scan
from prodm.runs import replacing

AlgorithmType = Literal["AUTOMATIC", "SEMIAUTOMATIC", "MANUAL"]

SEG_SERIES_NUMBER_OFFSET = 2000
SR_SERIES_NUMBER_OFFSET = 3000
NO_DATE, NO_TIME = "19000101", "000000"
IDENTITY = (
    *("SpecificCharacterSet", "PatientID", "PatientName", "PatientBirthDate", "PatientSex"),
    *("AccessionNumber", "StudyID", "StudyDate", "StudyTime", "ReferringPhysicianName"),
)
DATES = (
    *("ContentDate", "ContentTime", "AcquisitionDate", "AcquisitionTime"),
    *("SeriesDate", "SeriesTime"),
)
ARTERIES = {
    Vessel.LAD: codes.SCT.LeftAnteriorDescendingCoronaryArtery,
    Vessel.LCX: codes.SCT.CircumflexCoronaryArtery,
    Vessel.RCA: codes.SCT.RightCoronaryArtery,
    Vessel.LM: codes.SCT.LeftMainCoronaryArtery,
    Vessel.UNSPECIFIED: codes.SCT.CoronaryArtery,
}
MILLIGRAM = Code("mg", "UCUM", "mg")
GRADE = Code("grade", PRIVATE_SCHEME, "Grade of coronary calcium")
RULE = Code("rule", PRIVATE_SCHEME, "Scoring rule")
REGION = Code("region", PRIVATE_SCHEME, "Origin of the scored region")
INTENDED_USE = Code("use", PRIVATE_SCHEME, "Intended use")
LOWER_END = Code("agatston-p5", PRIVATE_SCHEME, "Agatston score, lower end of the 90 % interval")
UPPER_END = Code("agatston-p95", PRIVATE_SCHEME, "Agatston score, upper end of the 90 % interval")


def write_lesion_seg(
    scan: Scan,
    labels: NDArray[np.uint8],
    path: Path,
    *,
    description: str,
    algorithm: str,
    algorithm_type: AlgorithmType = "AUTOMATIC",
) -> Path | None:
    """Write the lesions ``labels`` [Z, Y, X], of ``Vessel``, and return the path.

    Without any lesion nothing is written and None is returned: a SEG cannot be empty.
    """
    if labels.shape != scan.volume.shape:
        raise ProdmError(f"the scan has {scan.volume.shape} voxels but the mask {labels.shape}")
    present = [int(label) for label in np.unique(labels) if label]
    if not present:
        return None
    if present[-1] > max(Vessel):
        raise ProdmError(f"labels of lesions are 0 to {max(Vessel):d}, got {present[-1]}")
    segments = np.searchsorted([0, *present], labels).astype(np.uint8)
    with config.disable_value_validation():  # keep what the source says, malformed or not
        headers, identity, source_digest = _headers(scan)
        words = (source_digest, description, algorithm, algorithm_type, prodm.__version__)
        digest = digest_of(labels, *words)
        origin = highdicom.AlgorithmIdentificationSequence(
            name=plain_text(algorithm)[:64],
            family=codes.DCM.NeighborhoodAnalysis,
            version=prodm.__version__,
            source="prodm",
        )
        seg = Segmentation(
            source_images=headers,
            pixel_array=_frames(scan, segments, headers),
            segmentation_type="BINARY",
            segment_descriptions=[
                SegmentDescription(
                    segment_number=number,
                    segment_label=Vessel(label).name,
                    segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
                    segmented_property_type=codes.SCT.PathologicCalcification,
                    algorithm_type=algorithm_type,
                    algorithm_identification=None if algorithm_type == "MANUAL" else origin,
                    tracking_uid=stable_uid("lesions", digest, str(label)),
                    tracking_id=f"{Vessel(label).name} calcium",
                    anatomic_regions=[ARTERIES[Vessel(label)]],
                )
                for number, label in enumerate(present, start=1)
            ],
            series_instance_uid=stable_uid("lesion series", digest),
            series_number=series_number(headers[0], SEG_SERIES_NUMBER_OFFSET),
            sop_instance_uid=stable_uid("lesion image", digest),
            instance_number=1,
            manufacturer="prodm",
            manufacturer_model_name="prodm",
            software_versions=prodm.__version__,
            device_serial_number="none",
            content_description=plain_text(f"{description}, {RESEARCH_ONLY}")[:64],
            content_label="CORONARY_CALCIUM",
        )
        organization_uid = stable_uid("dimensions", digest)
        for item in (*seg.DimensionOrganizationSequence, *seg.DimensionIndexSequence):
            item.DimensionOrganizationUID = organization_uid
        return _finish(seg, identity, description, path)


def write_score_report(
    scan: Scan,
    score: Mapping[str, Any],
    path: Path,
    *,
    description: str = "calcium score",
    interval: tuple[float, float] | None = None,
    model: str | None = None,
) -> Path:
    """Write the score as a structured report and return the path.

    ``score`` is what ``prodm score --json`` prints; ``interval`` holds the ends of the 90 %
    interval of the Agatston score, and ``model`` names what corrected the scan.
    """
    numbers = [score["agatston"], score["volume_mm3"], *score["per_vessel"].values()]
    if not all(math.isfinite(number) for number in (*numbers, *(interval or ()))):
        raise ProdmError(f"a report holds finite scores only, got {numbers} and {interval}")
    with config.disable_value_validation():  # keep what the source says, malformed or not
        headers, identity, source_digest = _headers(scan)
        content = json.dumps([dict(score), interval, model, description], sort_keys=True)
        digest = stable_uid(source_digest, content, prodm.__version__)
        algorithm = sr.AlgorithmIdentification(
            name="prodm",
            version=prodm.__version__,
            parameters=[
                f"rule {json.dumps(score['rule'])}",
                *([f"model {plain_text(model)}"] if model else []),
                RESEARCH_ONLY,
            ],
        )
        groups = [_total_group(score, interval, algorithm, headers, digest)]
        for name, agatston in score["per_vessel"].items():
            groups.append(_vessel_group(score, Vessel[name], agatston, algorithm, digest))
        observer = sr.ObserverContext(
            observer_type=codes.DCM.Device,
            observer_identifying_attributes=sr.DeviceObserverIdentifyingAttributes(
                uid=stable_uid("device", prodm.__version__),
                name="prodm",
                manufacturer_name="prodm",
                model_name=f"prodm {prodm.__version__}, {RESEARCH_ONLY}",
            ),
        )
        report = sr.EnhancedSR(
            evidence=headers,
            content=sr.MeasurementReport(
                observation_context=sr.ObservationContext(observer_device_context=observer),
                procedure_reported=codes.LN.CTUnspecifiedBodyRegion,
                imaging_measurements=groups,
                title=codes.DCM.ImagingMeasurementReport,
            ),
            series_instance_uid=stable_uid("report series", digest),
            series_number=series_number(headers[0], SR_SERIES_NUMBER_OFFSET),
            sop_instance_uid=stable_uid("report", digest),
            instance_number=1,
            manufacturer="prodm",
            is_complete=True,
        )
        report.ManufacturerModelName = "prodm"
        report.SoftwareVersions = prodm.__version__
        return _finish(report, identity, description, path)


def _total_group(
    score: Mapping[str, Any],
    interval: tuple[float, float] | None,
    algorithm: sr.AlgorithmIdentification,
    headers: Sequence[Dataset],
    digest: str,
) -> sr.MeasurementsAndQualitativeEvaluations:
    """Measurements of all coronary arteries together, and how they were made."""
    measurements = [
        _agatston(score["agatston"]),
        sr.Measurement(
            name=codes.DCM.CalciumVolume,
            value=score["volume_mm3"],
            unit=codes.UCUM.CubicMillimeter,
            method=codes.DCM.VolumeScoringMethod,
        ),
        _number_of_lesions(len(score["lesions"])),
        sr.Measurement(
            name=codes.DCM.AgatstonScoreThreshold,
            value=score["rule"]["threshold_hu"],
            unit=codes.UCUM.HounsfieldUnit,
        ),
    ]
    if score.get("mass_mg") is not None:
        mass = sr.Measurement(
            name=codes.DCM.CalciumMass,
            value=score["mass_mg"],
            unit=MILLIGRAM,
            method=codes.DCM.MassScoringMethod,
        )
        measurements.append(mass)
    for name, end in zip((LOWER_END, UPPER_END), interval or (), strict=False):
        measurements.append(sr.Measurement(name=name, value=end, unit=codes.UCUM.NoUnits))
    evaluations = [
        _evaluation(GRADE, score["grade"]),
        _evaluation(RULE, score["rule"]["name"]),
        _evaluation(REGION, score["region"]["source"]),
        _evaluation(INTENDED_USE, RESEARCH_ONLY),
    ]
    return sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(
            uid=stable_uid("all arteries", digest), identifier="coronary calcium"
        ),
        finding_type=codes.SCT.VascularCalcification,
        algorithm_id=algorithm,
        finding_sites=[sr.FindingSite(codes.SCT.CoronaryArtery)],
        measurements=measurements,
        qualitative_evaluations=evaluations,
        source_images=[
            sr.SourceImageForMeasurementGroup(header.SOPClassUID, header.SOPInstanceUID)
            for header in headers
        ],
    )


def _vessel_group(
    score: Mapping[str, Any],
    vessel: Vessel,
    agatston: float,
    algorithm: sr.AlgorithmIdentification,
    digest: str,
) -> sr.MeasurementsAndQualitativeEvaluations:
    num_lesions = sum(lesion["vessel"] == vessel.name for lesion in score["lesions"])
    return sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(
            uid=stable_uid("artery", digest, vessel.name), identifier=f"{vessel.name} calcium"
        ),
        finding_type=codes.SCT.VascularCalcification,
        algorithm_id=algorithm,
        finding_sites=[sr.FindingSite(ARTERIES[vessel])],
        measurements=[_agatston(agatston), _number_of_lesions(num_lesions)],
    )


def _agatston(value: float) -> sr.Measurement:
    return sr.Measurement(
        name=codes.SCT.CoronaryArteryCalciumScore,
        value=value,
        unit=codes.UCUM.NoUnits,
        method=codes.DCM.AgatstonScoringMethod,
    )


def _number_of_lesions(count: int) -> sr.Measurement:
    return sr.Measurement(
        name=codes.DCM.NumberOfCalcifications, value=count, unit=codes.UCUM.NoUnits
    )


def _evaluation(name: Code, value: str) -> sr.QualitativeEvaluation:
    text = plain_text(value)
    return sr.QualitativeEvaluation(name, Code(text[:16].strip(), PRIVATE_SCHEME, text[:64]))


def _headers(scan: Scan) -> tuple[list[Dataset], Dataset, str]:
    """Return headers for highdicom, who the patient is and in which study, and a hash.

    highdicom judges these values, and refuses or warns of some that real files hold; it gets
    empty ones, and the true ones are put back, as they are, at the end.
    """
    headers, digest = read_headers(scan)
    identity = Dataset()
    for keyword in (*IDENTITY, *DATES):
        if keyword in headers[0]:
            identity.add(copy.deepcopy(headers[0][keyword]))
    for header in headers:
        for keyword in IDENTITY:
            if keyword == "SpecificCharacterSet":
                header.pop(keyword, None)
            else:
                setattr(header, keyword, "")
        header.setdefault("PositionReferenceIndicator", "")
    return headers, identity, digest


def _frames(
    scan: Scan, segments: NDArray[np.uint8], headers: Sequence[Dataset]
) -> NDArray[np.uint8]:
    """Return the segments in the order of the source's frames and pixels."""
    stored = scan.stored.to_stored(segments)
    if not scan.frame_indices:
        return np.ascontiguousarray(stored)
    frames = np.zeros((int(headers[0].NumberOfFrames), *stored.shape[1:]), dtype=np.uint8)
    frames[list(scan.frame_indices)] = stored
    return frames


def _finish(dataset: Dataset, identity: Dataset, description: str, path: Path) -> Path:
    """Give the object its patient, study, name and dates, and write it whole or not at all."""
    dataset.SeriesDescription = series_description(description)
    for keyword in ("InstanceCreationDate", "InstanceCreationTime", "SpecificCharacterSet"):
        dataset.pop(keyword, None)
    for item in dataset.get("ContributingEquipmentSequence") or []:
        item.pop("ContributionDateTime", None)  # highdicom's clock
    for keyword in IDENTITY:
        if keyword in identity:
            dataset.add(identity[keyword])
    kinds = ("Content", "Acquisition", "Series", "Study")
    kind = next((kind for kind in kinds if identity.get(f"{kind}Date")), None)
    dataset.ContentDate = identity[f"{kind}Date"].value if kind else NO_DATE
    dataset.ContentTime = (identity.get(f"{kind}Time") if kind else None) or NO_TIME
    if path.exists():
        raise ProdmError(f"{path} exists already; choose another place")
    try:
        with replacing(path) as partial:
            save(dataset, partial)
    except OSError as error:
        raise ProdmError(f"cannot write {path}: {error.strerror or error}") from error
    return path
