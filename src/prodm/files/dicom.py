"""DICOM series to volumes: classic slices, one file each, and enhanced multi-frame CT.

Headers are read first, without pixels, to find, choose and check the series; only then are
the pixels of the chosen slices decoded, one at a time, into the volume.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydicom import Dataset

from prodm.errors import ProdmError
from prodm.files.archive import FileSet, open_files
from prodm.files.parsing import damage_as, read_dataset
from prodm.files.pixels import (
    LOSSY_SYNTAXES,
    PIXEL_TAGS,
    HounsfieldArray,
    declared_padding,
    decode,
    tissue_padding_hu,
    to_hu,
    transfer_syntax,
)
from prodm.files.scans import Scan
from prodm.files.series import (
    MODALITY_NAMES,
    ImageHeader,
    Listing,
    Series,
    choose,
    find_series,
    number,
    numbers,
)
from prodm.files.stack import MAX_VOXELS, Plane, Stack, arrange
from prodm.volume import Hounsfield, Volume

NOT_HU_TYPES = ("Z_EFF", "ED", "EDW", "HU_MOD", "PCT", "MGML", "OD")


def read_dicom(path: Path, wanted: str | None = None) -> Scan:
    """Read the one series of a folder, a zip or a file, or the one that is wanted."""
    with open_files(path) as files:
        listing = find_series(files)
        series = choose(listing, wanted, files)
        scan = read_series(files, series)
    notes = _notes(listing, wanted)
    warnings = (*notes, *scan.warnings)
    return Scan(**{**scan.__dict__, "warnings": warnings})


def read_series(files: FileSet, series: Series) -> Scan:
    """Read one series of an open file set."""
    where = _where(files, series)
    _check_kind(series, where)
    multi_frame = [header for header in series.headers if header.is_multi_frame]
    if multi_frame and len(series.headers) > 1:
        raise ProdmError(
            f"{where} holds {len(series.headers)} files, some of them multi-frame; name one file"
        )
    if multi_frame:
        planes = _frame_planes(files, multi_frame[0])
    else:
        planes = [_plane(header, files.label(header.name)) for header in series.headers]
    stack = arrange(planes, where)
    hu, warnings = _read_pixels(files, stack)
    first = series.headers[0]
    single = bool(multi_frame)
    names = [plane.name for plane in stack.planes]
    if single or files.archive:
        paths: tuple[Path, ...] = (files.path(names[0]),)
    else:
        paths = tuple(files.path(name) for name in names)
    members = tuple(names[:1] if single else names) if files.archive else ()
    volume = Volume(hu, stack.grid).to_lps()
    lossy = ["the pixels were compressed with loss"] if first.lossy else []
    return Scan(
        volume=volume,
        path=files.root,
        files=paths,
        series_uid=series.uid,
        description=series.description,
        slice_thickness_mm=stack.planes[0].slice_thickness_mm,
        kvp=first.kvp,
        contrast_agent=first.contrast_agent,
        warnings=tuple(dict.fromkeys([*stack.warnings, *warnings, *lossy])),
        format="zip" if files.archive else "dicom",
        members=members,
        frame_indices=tuple(plane.frame_index for plane in stack.planes) if single else (),
        stored=stack.stored_order,
        series_uid_made=series.uid_made,
    )


def read_datasets(scan: Scan, *, pixels: bool) -> Iterator[Dataset]:
    """Yield the datasets that a scan was read from, in slice order."""
    if not scan.members:
        for path in scan.files:
            with FileSet(path, ("",)).open("") as file:
                dataset = read_dataset(file, str(path), pixels=pixels)
            yield dataset
        return
    with open_files(scan.path) as files:
        for name in scan.members:
            with files.open(name) as file:
                dataset = read_dataset(file, files.label(name), pixels=pixels)
            yield dataset


def _where(files: FileSet, series: Series) -> str:
    """What messages call the series."""
    return (
        f"series {series.description!r} of {files.root}" if series.description else str(files.root)
    )


def _notes(listing: Listing, wanted: str | None) -> list[str]:
    notes = []
    if wanted is not None and listing.damaged:
        notes.append(f"{len(listing.damaged)} damaged DICOM files were left out")
    if listing.not_dicom:
        count = len(listing.not_dicom)
        notes.append(
            f"{count} {'file is' if count == 1 else 'files are'} named .dcm but not DICOM, "
            f"such as {listing.not_dicom[0]}"
        )
    return notes


def _check_kind(series: Series, where: str) -> None:
    """Refuse what is not a CT in Hounsfield units."""
    if series.modality not in ("CT", ""):
        name = MODALITY_NAMES.get(series.modality, series.modality)
        raise ProdmError(f"{where} is not CT but {name}; calcium is scored on CT")
    if series.is_localizer:
        raise ProdmError(f"{where} is a localizer, not a stack of slices")
    if series.is_capture:
        raise ProdmError(f"{where} is a screenshot, not a stack of slices")
    if series.headers[0].rescale_type in NOT_HU_TYPES:
        kind = series.headers[0].rescale_type
        raise ProdmError(f"{where} holds values of type {kind}, not Hounsfield units")


def _plane(header: ImageHeader, label: str) -> Plane:
    """Place of a classic slice."""
    position = header.position_xyz_mm
    orientation = header.orientation
    spacing = header.pixel_spacing_mm
    slope, intercept = header.rescale_slope, header.rescale_intercept
    if position is None or orientation is None:
        raise ProdmError(f"{label} does not say where it lies (ImagePositionPatient, Orientation)")
    if spacing is None:
        raise ProdmError(f"{label} has no PixelSpacing")
    if slope is None or intercept is None or slope == 0:
        raise ProdmError(
            f"{label} has no calibration to HU (RescaleSlope, RescaleIntercept), so nothing can "
            "be scored on it"
        )
    return Plane(
        name=header.name,
        frame_index=0,
        rows=header.rows or 0,
        columns=header.columns or 0,
        position_xyz_mm=position,
        orientation=orientation,
        pixel_spacing_mm=spacing,
        slope=slope,
        intercept=intercept,
        slice_thickness_mm=header.slice_thickness_mm,
        spacing_between_slices_mm=header.spacing_between_slices_mm,
        sop_instance_uid=header.sop_instance_uid,
    )


def _frame_planes(files: FileSet, header: ImageHeader) -> list[Plane]:
    """Places of the frames of an enhanced object, from its functional groups."""
    label = files.label(header.name)
    num_frames = header.num_frames or 1
    rows, columns = header.rows or 0, header.columns or 0
    if num_frames < 1 or num_frames * rows * columns > MAX_VOXELS:
        raise ProdmError(
            f"{label} claims {num_frames} frames of {rows} x {columns} pixels, which is absurd"
        )
    with files.open(header.name) as file:
        dataset = read_dataset(file, label)
    with damage_as(f"{label} has damaged functional groups"):
        shared = dataset.get("SharedFunctionalGroupsSequence") or []
        per_frame = dataset.get("PerFrameFunctionalGroupsSequence") or []
        if len(per_frame) != num_frames:
            raise ProdmError(
                f"{label} has {num_frames} frames but describes the place of {len(per_frame)}"
            )
        return [
            _frame_plane(header, n, [per_frame[n], *shared[:1]], label) for n in range(num_frames)
        ]


def _frame_plane(header: ImageHeader, index: int, groups: Sequence[Dataset], label: str) -> Plane:
    def group(keyword: str) -> Dataset:
        for dataset in groups:
            items = dataset.get(keyword)
            if items:
                item: Dataset = items[0]
                return item
        return Dataset()

    measures = group("PixelMeasuresSequence")
    transformation = group("PixelValueTransformationSequence")
    if str(transformation.get("RescaleType", "")).upper() in NOT_HU_TYPES:
        raise ProdmError(f"{label} holds {transformation.RescaleType} values, not Hounsfield units")
    placed = ImageHeader(
        **{
            **header.__dict__,
            "position_xyz_mm": numbers(group("PlanePositionSequence"), "ImagePositionPatient", 3),
            "orientation": numbers(group("PlaneOrientationSequence"), "ImageOrientationPatient", 6),
            "pixel_spacing_mm": numbers(measures, "PixelSpacing", 2),
            "slice_thickness_mm": number(measures, "SliceThickness"),
            "spacing_between_slices_mm": number(measures, "SpacingBetweenSlices"),
            "rescale_slope": number(transformation, "RescaleSlope"),
            "rescale_intercept": number(transformation, "RescaleIntercept"),
        }
    )
    plane = _plane(placed, f"frame {index + 1} of {label}")
    return Plane(**{**plane.__dict__, "frame_index": index})


def _read_pixels(files: FileSet, stack: Stack) -> tuple[Hounsfield, list[str]]:
    """Values of all slices, and warnings."""
    array = HounsfieldArray(stack.grid.shape)
    warnings: list[str] = []
    start = 0
    while start < len(stack.planes):
        name = stack.planes[start].name
        stop = start
        while stop < len(stack.planes) and stack.planes[stop].name == name:
            stop += 1
        warnings += _read_file_pixels(files, stack.planes[start:stop], array, start)
        start = stop
    return array.hu, warnings


def _read_file_pixels(
    files: FileSet, planes: Sequence[Plane], array: HounsfieldArray, start: int
) -> list[str]:
    """Put the frames of one file into the array from index ``start`` on."""
    label = files.label(planes[0].name)
    with files.open(planes[0].name) as file:
        dataset = read_dataset(file, label, PIXEL_TAGS, pixels=True)
    _check_size(dataset, planes[0], label)
    with damage_as(f"{label} is a damaged DICOM file: its image cannot be described"):
        padding = declared_padding(dataset)
        lossy = transfer_syntax(dataset) in LOSSY_SYNTAXES
    frames = decode(dataset, [plane.frame_index for plane in planes], label)
    for index, (plane, stored) in enumerate(zip(planes, frames, strict=True), start=start):
        array.put(index, to_hu(stored, plane.slope, plane.intercept, padding), label)
    warnings = []
    kept = padding and tissue_padding_hu(padding, planes[0].slope, planes[0].intercept)
    if kept is not None:
        warnings.append(
            f"padding is declared as {kept:g} HU, a tissue value, and was left as it is"
        )
    if lossy:
        warnings.append("the pixels were compressed with loss")
    return warnings


def _check_size(dataset: Dataset, plane: Plane, label: str) -> None:
    """Refuse a file that changed since its header was read, or whose pixels never end.

    Of a file that ends inside compressed pixels, pydicom returns nothing at all.
    """
    with damage_as(f"{label} has damaged pixel data; the file is cut short"):
        same = (int(dataset.Rows), int(dataset.Columns)) == (plane.rows, plane.columns)
    if not same:
        raise ProdmError(f"{label} changed while it was read")
