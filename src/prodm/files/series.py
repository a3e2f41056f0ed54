"""DICOM images grouped into series, and the choice of one.

Files are told by content, so names and endings do not matter and junk is passed over. Images
belong together when they share a SeriesInstanceUID. Where it is missing, as in the non-gated
half of COCA, they belong together when they lie in one folder and agree in size, orientation,
pixel spacing, kernel and description; the series then gets a UID made from its content, the
same for the same files wherever they lie.

Nothing is guessed: more than one candidate is a question for the user. Localizers are never
candidates, and neither is another modality beside a CT.
"""

import hashlib
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import PurePosixPath
from typing import IO, Any

from pydicom import Dataset

from prodm.errors import ProdmError
from prodm.files.archive import FileSet
from prodm.files.formats import HEAD_BYTES, looks_like_dicom
from prodm.files.parsing import damage_as, read_dataset

CT_CLASSES = (
    "1.2.840.10008.5.1.4.1.1.2",  # CT Image
    "1.2.840.10008.5.1.4.1.1.2.1",  # Enhanced CT Image
    "1.2.840.10008.5.1.4.1.1.2.2",  # Legacy Converted Enhanced CT Image
)
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
SEGMENTATION_CLASSES = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7")
MODALITY_NAMES = {"PT": "PET", "MR": "MR", "CT": "CT", "NM": "nuclear medicine", "US": "ultrasound"}
MAX_SCOUT_IMAGES = 3
MAX_LISTED = 20

HEADER_TAGS = [
    "SOPClassUID",
    "SOPInstanceUID",
    "SeriesInstanceUID",
    "PatientID",
    "Modality",
    "ImageType",
    "SeriesDescription",
    "SeriesNumber",
    "ConvolutionKernel",
    "AcquisitionDate",
    "AcquisitionTime",
    "Rows",
    "Columns",
    "NumberOfFrames",
    "ImagePositionPatient",
    "ImageOrientationPatient",
    "PixelSpacing",
    "SliceThickness",
    "SpacingBetweenSlices",
    "KVP",
    "ContrastBolusAgent",
    "RescaleSlope",
    "RescaleIntercept",
    "RescaleType",
    "LossyImageCompression",
]


@dataclass(frozen=True)
class ImageHeader:
    """What one DICOM image says of itself; a value that is missing or unreadable is None."""

    name: str  # in the file set
    sop_class_uid: str
    sop_instance_uid: str
    series_uid: str
    patient_id: str
    modality: str
    image_type: tuple[str, ...]
    description: str
    series_number: float | None
    kernel: str
    acquired: str
    rows: int | None
    columns: int | None
    num_frames: int | None
    position_xyz_mm: tuple[float, ...] | None
    orientation: tuple[float, ...] | None
    pixel_spacing_mm: tuple[float, ...] | None
    slice_thickness_mm: float | None
    spacing_between_slices_mm: float | None
    kvp: float | None
    contrast_agent: str | None
    rescale_slope: float | None
    rescale_intercept: float | None
    rescale_type: str
    lossy: bool

    @property
    def is_localizer(self) -> bool:
        """Whether the image says that it is a localizer."""
        return bool({"LOCALIZER", "SCOUT"} & {part.upper() for part in self.image_type})

    @property
    def is_multi_frame(self) -> bool:
        """Whether the object is an enhanced one, which describes each frame in sequences."""
        return self.sop_class_uid in CT_CLASSES[1:] or (self.num_frames or 1) > 1

    @property
    def is_axial(self) -> bool | None:
        """Whether the slice is nearer to axial than to any other plane; None if unknown."""
        if self.orientation is None:
            return None
        ax, ay, _, bx, by, _ = self.orientation
        return abs(ax * by - ay * bx) > math.cos(math.radians(45))


@dataclass(frozen=True, eq=False)
class Series:
    """Images that belong together, without localizers unless there is nothing else."""

    uid: str
    headers: tuple[ImageHeader, ...]
    uid_made: bool = False

    @property
    def description(self) -> str:
        """SeriesDescription."""
        return self.headers[0].description

    @property
    def modality(self) -> str:
        """Modality, from the SOP class where the element is missing; may be empty."""
        first = self.headers[0]
        return first.modality or ("CT" if first.sop_class_uid in CT_CLASSES else "")

    @cached_property
    def is_localizer(self) -> bool:
        """Whether these are localizers, by their own word or as a few images that are no stack."""
        if all(header.is_localizer for header in self.headers):
            return True
        few = len(self.headers) <= MAX_SCOUT_IMAGES
        single_frames = not any(header.is_multi_frame for header in self.headers)
        return few and single_frames and any(header.is_axial is False for header in self.headers)

    @property
    def is_capture(self) -> bool:
        """Whether this is a screenshot, such as a dose report."""
        return self.headers[0].sop_class_uid.startswith(SECONDARY_CAPTURE)

    @property
    def num_slices(self) -> int:
        """Number of images, counting the frames of a multi-frame object."""
        return sum(header.num_frames or 1 for header in self.headers)

    @property
    def spacing_mm(self) -> float | None:
        """Usual distance between neighbouring slices, or their thickness if that is all."""
        heights = sorted({h.position_xyz_mm[2] for h in self.headers if h.position_xyz_mm})
        steps = Counter(round(b - a, 2) for a, b in pairwise(heights))
        first = self.headers[0]
        if steps:
            return steps.most_common(1)[0][0]
        return first.spacing_between_slices_mm or first.slice_thickness_mm

    def __str__(self) -> str:
        spacing = f"{self.spacing_mm:g} mm" if self.spacing_mm else "unknown spacing"
        kernel = f", kernel {self.headers[0].kernel}" if self.headers[0].kernel else ""
        name = self.description or "no description"
        return f"{name}, {self.num_slices} slices, {spacing}{kernel}, {self.uid}"


@dataclass(frozen=True)
class Listing:
    """The series of a file set and the DICOM files that could not be placed."""

    series: tuple[Series, ...]
    damaged: tuple[str, ...] = ()  # sentences
    not_dicom: tuple[str, ...] = ()  # named .dcm, yet something else

    @property
    def worth_listing(self) -> tuple[Series, ...]:
        """All series of images but localizers and screenshots."""
        return tuple(s for s in self.series if not s.is_localizer and not s.is_capture)

    @property
    def candidates(self) -> tuple[Series, ...]:
        """Series that may be read, in the order in which they are numbered."""
        ct = [s for s in self.worth_listing if s.modality in ("CT", "")]
        return tuple(ct) or self.worth_listing


def find_series(files: FileSet) -> Listing:
    """Read the headers of all DICOM images in a file set and group them."""
    headers, damaged, not_dicom = [], [], []
    for name in files.names:
        try:
            with files.open(name) as file:
                with damage_as(f"cannot unpack {files.label(name)}: the zip is damaged"):
                    head = file.read(HEAD_BYTES)
                if not looks_like_dicom(head):
                    if name.lower().endswith(".dcm"):
                        not_dicom.append(name)
                    continue
                file.seek(0)
                header = _read_header(file, name, files.label(name))
        except ProdmError as error:
            damaged.append(str(error))
            continue
        if header is not None:
            headers.append(header)
    groups: dict[tuple[object, ...], list[ImageHeader]] = defaultdict(list)
    for header in headers:
        groups[_group_key(header)].append(header)
    series = [_make_series(files, group) for group in groups.values()]
    series.sort(key=lambda s: (s.headers[0].series_number or 0, s.description, s.uid))
    return Listing(tuple(series), tuple(damaged), tuple(not_dicom))


def choose(listing: Listing, wanted: str | None, files: FileSet) -> Series:
    """Return the one series to read, or ask."""
    where = files.root
    if not listing.series:
        if listing.damaged:
            raise ProdmError(listing.damaged[0])
        raise ProdmError(
            f"{where} holds no DICOM image; name a DICOM folder, a zip of one, or a NIfTI or "
            "NRRD file"
        )
    if wanted is not None:
        return _wanted(listing, wanted, files)
    candidates = listing.candidates
    if not candidates:
        kind = "localizer images" if listing.series[0].is_localizer else "screenshots"
        raise ProdmError(f"{where} holds only {kind}, no stack of slices")
    if len(candidates) > 1:
        raise ProdmError(
            f"{where} holds {len(candidates)} series; choose one with --series and its number "
            f"or UID:{_numbered(candidates)}"
        )
    if listing.damaged:
        raise ProdmError(listing.damaged[0])
    return candidates[0]


def _wanted(listing: Listing, wanted: str, files: FileSet) -> Series:
    by_uid = [series for series in listing.series if series.uid == wanted.strip()]
    candidates = listing.candidates
    if len(by_uid) == 1:
        return by_uid[0]
    if len(by_uid) > 1:
        raise ProdmError(f"{files.root} holds series {wanted} more than once; name one folder")
    if wanted.strip().isdecimal() and 1 <= int(wanted) <= len(candidates):
        return candidates[int(wanted) - 1]
    raise ProdmError(f"{files.root} has no series {wanted!r}; it has:{_numbered(candidates)}")


def _numbered(candidates: tuple[Series, ...]) -> str:
    lines = [f"\n  {n}  {series}" for n, series in enumerate(candidates[:MAX_LISTED], start=1)]
    if len(candidates) > MAX_LISTED:
        lines.append(f"\n  and {len(candidates) - MAX_LISTED} more")
    return "".join(lines)


def _read_header(file: IO[bytes], name: str, label: str) -> ImageHeader | None:
    """Header of an image; None for DICOM that is no image, such as a report or a mask."""
    dataset = read_dataset(file, label, HEADER_TAGS)
    with damage_as(f"{label} is a damaged DICOM file: its header cannot be read"):
        header = _header(dataset, name)
    if header.sop_class_uid in SEGMENTATION_CLASSES:
        return None
    if header.rows and header.columns:
        return header
    if header.sop_class_uid in CT_CLASSES or (not header.sop_class_uid and len(dataset) < 2):
        raise ProdmError(f"{label} is a damaged DICOM file: it is cut short or has no image size")
    return None


def _header(dataset: Dataset, name: str) -> ImageHeader:
    def text(keyword: str) -> str:
        value = dataset.get(keyword)
        return "" if value is None else str(value).strip()

    frames = number(dataset, "NumberOfFrames")
    rows, columns = number(dataset, "Rows"), number(dataset, "Columns")
    return ImageHeader(
        name=name,
        sop_class_uid=text("SOPClassUID"),
        sop_instance_uid=text("SOPInstanceUID"),
        series_uid=text("SeriesInstanceUID"),
        patient_id=text("PatientID"),
        modality=text("Modality").upper(),
        image_type=tuple(str(part) for part in _values(dataset, "ImageType")),
        description=text("SeriesDescription"),
        series_number=number(dataset, "SeriesNumber"),
        kernel=" ".join(str(part) for part in _values(dataset, "ConvolutionKernel")),
        acquired=text("AcquisitionDate") + text("AcquisitionTime"),
        rows=None if rows is None else int(rows),
        columns=None if columns is None else int(columns),
        num_frames=None if frames is None else int(frames),
        position_xyz_mm=numbers(dataset, "ImagePositionPatient", 3),
        orientation=numbers(dataset, "ImageOrientationPatient", 6),
        pixel_spacing_mm=numbers(dataset, "PixelSpacing", 2),
        slice_thickness_mm=number(dataset, "SliceThickness"),
        spacing_between_slices_mm=number(dataset, "SpacingBetweenSlices"),
        kvp=number(dataset, "KVP"),
        contrast_agent=text("ContrastBolusAgent") or None,
        rescale_slope=number(dataset, "RescaleSlope"),
        rescale_intercept=number(dataset, "RescaleIntercept"),
        rescale_type=text("RescaleType").upper(),
        lossy=text("LossyImageCompression") == "01",
    )


def numbers(dataset: Dataset, keyword: str, count: int) -> tuple[float, ...] | None:
    """Return finite numbers of a dataset; None where they are missing or unreadable."""
    try:
        values = tuple(float(value) for value in _values(dataset, keyword))
    except (ValueError, TypeError, OverflowError):
        return None
    return values if len(values) == count and all(map(math.isfinite, values)) else None


def number(dataset: Dataset, keyword: str) -> float | None:
    """Return one finite number of a dataset; None where it is missing or unreadable."""
    values = numbers(dataset, keyword, 1)
    return None if values is None else values[0]


def _values(dataset: Dataset, keyword: str) -> list[Any]:
    """All values of an element, whether it holds none, one or several."""
    try:
        value = dataset.get(keyword)
    except (ValueError, TypeError, OverflowError):
        return []
    if value is None or value == "":
        return []
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return [value]
    return list(value)


def _group_key(header: ImageHeader) -> tuple[object, ...]:
    if header.series_uid:
        return (header.series_uid,)
    orientation = header.orientation and tuple(round(value, 3) for value in header.orientation)
    folder = PurePosixPath(header.name).parent
    return (
        None,
        folder,
        header.modality,
        header.rows,
        header.columns,
        orientation,
        header.pixel_spacing_mm,
        header.description,
        header.series_number,
        header.kernel,
        header.is_localizer,
    )


def _make_series(files: FileSet, group: list[ImageHeader]) -> Series:
    headers = tuple(header for header in group if not header.is_localizer) or tuple(group)
    if headers[0].series_uid:
        return Series(headers[0].series_uid, headers)
    return Series(_uid_of_content(files, headers), headers, uid_made=True)


def _uid_of_content(files: FileSet, headers: tuple[ImageHeader, ...]) -> str:
    """UID from what the images say of themselves and the bytes of one of them."""
    facts = sorted(
        repr((h.sop_instance_uid, h.position_xyz_mm, h.acquired, h.patient_id, h.description))
        for h in headers
    )
    digest = hashlib.sha256("\n".join(facts).encode())
    lowest = min(headers, key=lambda h: (h.position_xyz_mm or (), h.sop_instance_uid, h.name))
    with files.open(lowest.name) as file, damage_as(f"cannot read {files.label(lowest.name)}"):
        digest.update(file.read())
    return f"2.25.{int.from_bytes(digest.digest()[:16])}"
