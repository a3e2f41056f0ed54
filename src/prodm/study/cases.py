"""From scans to patches: the same window, cut from the result of every method.

A case names one scan per method, all on one grid, and where to look: the centre of the
patch in patient coordinates (LPS mm, as in the output of ``prodm score``) or a region mask
around which the patch is laid. A block that is no larger than the patch is taken whole.

Cases come as text, ``NAME:original=a.nii.gz,unet=b.nii.gz,region=mask.nii.gz``, or as a CSV
table with the columns ``case, method, path`` and, where needed, ``center_xyz_mm`` or
``region``; paths in it are relative to the table.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prodm.errors import ProdmError
from prodm.runs import hash_files
from prodm.volume import Grid, Index, Vector, Volume, Window

MIN_METHODS, MAX_METHODS = 2, 6  # more do not fit side by side
MAX_PATCH_BYTES = 64 * 2**20
INT16 = np.iinfo(np.int16)
PLACE_WORDS = ("center", "region")
REQUIRED_COLUMNS = ("case", "method", "path")
PLACE_COLUMNS = ("center_xyz_mm", "region")
CORRECT_RESULT = "result.json"  # marks the output folder of prodm correct
CORRECTED_NAMES = ("corrected", "corrected.nii.gz", "corrected.nii", "corrected.nrrd")


@dataclass(frozen=True)
class CaseSource:
    """What the user named: a scan per method, and where the patch lies."""

    name: str
    paths: dict[str, Path]  # by method
    center_xyz_mm: Vector | None = None
    region: Path | None = None


@dataclass(frozen=True)
class CasePatches:
    """One patch per method, int16 HU [Z, Y, X] on one grid."""

    name: str
    grid: Grid
    patches: dict[str, NDArray[np.int16]]
    inputs_sha256: dict[str, str] = field(default_factory=dict)


def parse_case(text: str) -> CaseSource:
    """Read one case from the command line.

    >>> case = parse_case("P1:original=a.nii.gz,prodm=b.nii.gz,center=10/-20.5/99")
    >>> case.name, sorted(case.paths), case.center_xyz_mm
    ('P1', ['original', 'prodm'], (10.0, -20.5, 99.0))
    """
    form = "NAME:METHOD=SCAN,METHOD=SCAN[,center=X/Y/Z or region=MASK]"
    name, colon, rest = text.partition(":")
    parts = [part.partition("=") for part in rest.split(",")]
    if not (name.strip() and colon) or any(not (k.strip() and v.strip()) for k, _, v in parts):
        raise ProdmError(f"a case is written {form}, got {text!r}")
    words = [(key.strip(), value.strip()) for key, _, value in parts]
    repeated = {key for key, _ in words if sum(key == other for other, _ in words) > 1}
    if repeated:
        raise ProdmError(f"case {name} names {sorted(repeated)[0]!r} twice")
    places = {key: value for key, value in words if key in PLACE_WORDS}
    return CaseSource(
        name.strip(),
        {key: Path(value) for key, value in words if key not in PLACE_WORDS},
        _center(name, places["center"]) if "center" in places else None,
        Path(places["region"]) if "region" in places else None,
    )


def read_case_table(path: Path) -> list[CaseSource]:
    """Read cases from a CSV table, in the order of their first rows."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = [column.strip() for column in reader.fieldnames or ()]
            reader.fieldnames = columns
            rows = [{k: (v or "").strip() for k, v in row.items() if k} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ProdmError(f"cannot read the table of cases {path}: {error}") from error
    missing = [column for column in REQUIRED_COLUMNS if column not in columns]
    unknown = [c for c in columns if c not in (*REQUIRED_COLUMNS, *PLACE_COLUMNS)]
    if missing or unknown:
        problem = f"it lacks {missing[0]!r}" if missing else f"it has {unknown[0]!r}"
        raise ProdmError(
            f"a table of cases has the columns case, method, path and, if needed, "
            f"center_xyz_mm or region, but in {path} {problem}"
        )
    by_case: dict[str, list[dict[str, str]]] = {}
    for row_number, row in enumerate(rows, start=2):
        if not all(row[column] for column in REQUIRED_COLUMNS):
            raise ProdmError(f"{path}, row {row_number}: case, method and path must be filled in")
        by_case.setdefault(row["case"], []).append(row)
    return [_from_rows(name, group, path.parent) for name, group in by_case.items()]


def _from_rows(name: str, rows: Sequence[dict[str, str]], folder: Path) -> CaseSource:
    paths: dict[str, Path] = {}
    for row in rows:
        if row["method"] in paths:
            raise ProdmError(f"case {name} names the method {row['method']!r} twice")
        paths[row["method"]] = folder / row["path"]
    centers = {row["center_xyz_mm"] for row in rows if row.get("center_xyz_mm")}
    regions = {row["region"] for row in rows if row.get("region")}
    if len(centers) > 1 or len(regions) > 1:
        raise ProdmError(f"case {name} has more than one centre or region; give one")
    return CaseSource(
        name,
        paths,
        _center(name, centers.pop()) if centers else None,
        folder / regions.pop() if regions else None,
    )


def _center(case: str, text: str) -> Vector:
    try:
        x, y, z = (float(word) for word in text.replace("/", " ").split())
    except ValueError:
        raise ProdmError(
            f"case {case}: a centre is three numbers X/Y/Z in mm (LPS), got {text!r}"
        ) from None
    if not np.all(np.isfinite((x, y, z))):
        raise ProdmError(f"case {case}: a centre is three finite numbers, got {text!r}")
    return x, y, z


def check_cases(sources: Sequence[CaseSource]) -> None:
    """Refuse a study that cannot be analysed, before any scan is read."""
    if not sources:
        raise ProdmError("a study needs cases; add --case, --cases or --demo")
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise ProdmError(f"two cases are called {name!r}; give each a name of its own")
    methods = set(sources[0].paths)
    if not MIN_METHODS <= len(methods) <= MAX_METHODS:
        raise ProdmError(
            f"a case compares {MIN_METHODS} to {MAX_METHODS} methods, "
            f"but {names[0]} names {len(methods)}"
        )
    for source in sources:
        if set(source.paths) != methods:
            raise ProdmError(
                f"every case needs the same methods, but {names[0]} has "
                f"{', '.join(sorted(methods))} and {source.name} has "
                f"{', '.join(sorted(source.paths)) or 'none'}"
            )
        if source.center_xyz_mm and source.region:
            raise ProdmError(f"case {source.name} has both a centre and a region; give one")


def cut_case(source: CaseSource, shape: Index, clip_hu: tuple[float, float] | None) -> CasePatches:
    """Read the scans of a case and cut the same patch from each."""
    from prodm.files.masks import read_mask
    from prodm.files.scans import read_scan

    scans = {method: read_scan(path) for method, path in corrected_paths(source)}
    volumes = {method: scan.volume for method, scan in scans.items()}
    region = None
    if source.region:
        region = read_mask(source.region, next(iter(volumes.values())).grid) > 0
    hashes = {f"{source.name} {m}": hash_files(scan.files) for m, scan in scans.items()}
    patches = cut_patches(source, volumes, region, shape, clip_hu)
    return replace(patches, inputs_sha256=hashes)


def corrected_paths(source: CaseSource) -> Iterable[tuple[str, Path]]:
    """Give each method and its scan; in the output of ``prodm correct``, the corrected one."""
    for method, path in source.paths.items():
        if not (path / CORRECT_RESULT).is_file():
            yield method, path
            continue
        inside = [path / name for name in CORRECTED_NAMES if (path / name).exists()]
        if len(inside) != 1:
            raise ProdmError(f"case {source.name}: {path} holds no corrected scan")
        yield method, inside[0]


def cut_patches(
    source: CaseSource,
    volumes: dict[str, Volume],
    region: NDArray[np.bool_] | None,
    shape: Index,
    clip_hu: tuple[float, float] | None,
) -> CasePatches:
    """Cut the same patch from volumes in memory. Grids must match."""
    first, grid = next((method, volume.grid) for method, volume in volumes.items())
    for method, volume in volumes.items():
        difference = grid.mismatch(volume.grid)
        if difference:
            raise ProdmError(
                f"case {source.name}: all methods need the grid of {first}, but for "
                f"{method} {difference}"
            )
    window = _window(source, grid, region, shape)
    patches = {m: _as_int16(source.name, m, v.hu[window], clip_hu) for m, v in volumes.items()}
    num_bytes = next(iter(patches.values())).nbytes
    if num_bytes > MAX_PATCH_BYTES:
        raise ProdmError(
            f"a patch may take {MAX_PATCH_BYTES // 2**20} MB, but that of {source.name} "
            f"takes {num_bytes // 2**20} MB; choose a smaller --size"
        )
    return CasePatches(source.name, grid.crop(window), patches)


def _window(
    source: CaseSource, grid: Grid, region: NDArray[np.bool_] | None, shape: Index
) -> Window:
    """Lay the patch over its centre, shifted where it would leave the scan."""
    size = [min(wanted, there) for wanted, there in zip(shape, grid.shape, strict=True)]
    if source.center_xyz_mm:
        center = np.asarray(grid.index_zyx(source.center_xyz_mm))
        if np.any(center < -0.5) or np.any(center > np.asarray(grid.shape) - 0.5):
            raise ProdmError(f"case {source.name}: the centre lies outside of the scan")
    elif region is not None:
        marked = np.argwhere(region)
        if not len(marked):
            raise ProdmError(f"case {source.name}: the region is empty")
        center = (marked.min(axis=0) + marked.max(axis=0)) / 2
    elif tuple(size) == grid.shape:
        center = (np.asarray(grid.shape) - 1) / 2
    else:
        raise ProdmError(
            f"case {source.name}: the scan, {grid.shape}, is larger than the patch, {shape}; "
            "say where to look with center=X/Y/Z or region=MASK"
        )
    starts = [
        int(np.clip(round(c - (n - 1) / 2), 0, total - n))
        for c, n, total in zip(center, size, grid.shape, strict=True)
    ]
    z, y, x = (slice(start, start + n) for start, n in zip(starts, size, strict=True))
    return z, y, x


def _as_int16(
    case: str, method: str, hu: NDArray[np.generic], clip_hu: tuple[float, float] | None
) -> NDArray[np.int16]:
    """Round to whole HU: one encoding for all, so that none stands out by its decimals."""
    values = hu.astype(np.float64)
    if not np.all(np.isfinite(values)):
        raise ProdmError(f"case {case}: the patch of {method} holds values that are not numbers")
    if clip_hu:
        values = np.clip(values, *clip_hu)
    values = np.rint(values)
    if values.min() < INT16.min or values.max() > INT16.max:
        raise ProdmError(
            f"case {case}: the patch of {method} leaves the range of HU "
            f"({values.min():.0f} to {values.max():.0f})"
        )
    return values.astype(np.int16)
