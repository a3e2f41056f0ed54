"""NIfTI and NRRD files to volumes, and volumes to NIfTI.

NIfTI positions are RAS, ours are LPS: x and y change sign. NRRD says in its header which of
them it uses. Arrays on disk run X first; ours are [Z, Y, X]. Either format may store its
axes in any order and direction; what is returned points to left, back and head.
"""

import bz2
import gzip
import math
import zlib
from collections.abc import Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Literal

import nibabel
import nrrd
import numpy as np
from nibabel.imageglobals import LoggingOutputSuppressor
from numpy.typing import NDArray

from prodm.calcium import AIR_HU
from prodm.errors import ProdmError
from prodm.files.parsing import damage_as
from prodm.files.pixels import PADDING_BELOW_HU, is_exact_int16
from prodm.files.stack import MAX_VOXELS
from prodm.runs import replacing
from prodm.volume import Direction, Grid, Hounsfield, Volume

LPS_OF_RAS = np.diag([-1.0, -1.0, 1.0])
MM_PER_UNIT = {"unknown": 1.0, "mm": 1.0, "meter": 1000.0, "micron": 0.001}
HIGHEST_LOWEST_HU = -200.0  # a CT whose lowest value lies above holds no air and no fat
SHEAR_TOLERANCE = 1e-3

SIGNS_TO_LPS = {  # of NRRD's "space"
    "left-posterior-superior": (1, 1, 1),
    "lps": (1, 1, 1),
    "right-anterior-superior": (-1, -1, 1),
    "ras": (-1, -1, 1),
    "left-anterior-superior": (1, -1, 1),
    "las": (1, -1, 1),
}


def read_nifti(path: Path) -> tuple[Volume, tuple[str, ...]]:
    """Return a NIfTI scan in HU and warnings."""
    values, grid, warnings = read_nifti_array(path)
    return _scan(values, grid, path, warnings)


def read_nrrd(path: Path) -> tuple[Volume, tuple[str, ...]]:
    """Return an NRRD scan in HU and warnings."""
    values, grid = read_nrrd_array(path)
    return _scan(values, grid, path, ())


def stores_mask(path: Path, kind: Literal["nifti", "nrrd"]) -> bool:
    """Tell by the header alone whether a file is a mask: 8 bits do not hold HU."""
    try:
        if kind == "nifti":
            with _nifti_stream(path) as stream, damage_as(f"{path} is damaged"):
                return bool(_nifti_class(stream).header_class.from_fileobj(stream)
                            .get_data_dtype().itemsize == 1)  # fmt: skip
        with path.open("rb") as file, damage_as(f"{path} is damaged"):
            return _nrrd_dtype(nrrd.read_header(file)).itemsize == 1
    except (ProdmError, OSError):
        return False


def read_nifti_array(path: Path) -> tuple[NDArray[Any], Grid, tuple[str, ...]]:
    """Return the values [Z, Y, X] of a NIfTI file, their grid, and warnings."""
    with (
        _nifti_stream(path) as stream,
        damage_as(f"{path} is a damaged NIfTI file"),
        LoggingOutputSuppressor(),  # nibabel would write to standard error
    ):
        image_class = _nifti_class(stream)
        header = image_class.header_class.from_fileobj(stream)
        stream.seek(0)
        shape = _three_axes(header.get_data_shape(), path)
        if header.get_data_dtype().kind not in "iuf":
            raise ProdmError(f"{path} stores colours or complex numbers, not HU")
        image = image_class.from_stream(stream)
        values = np.asanyarray(image.dataobj).reshape(shape)
    unit = MM_PER_UNIT[header.get_xyzt_units()[0]]
    affine = np.asarray(image.affine, dtype=float)
    directions = LPS_OF_RAS @ affine[:3, :3] * unit
    origin = LPS_OF_RAS @ affine[:3, 3] * unit
    grid = _grid(shape, directions, origin, path)
    no_codes = int(header["qform_code"]) == 0 and int(header["sform_code"]) == 0
    warnings = ("the file does not say how it lies in the patient",) if no_codes else ()
    return values.transpose(2, 1, 0), grid, warnings


@contextmanager
def _nifti_stream(path: Path) -> Any:  # noqa: ANN401
    """Open a NIfTI file, compressed or not, at its header."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not zipped:
                yield file
                return
            with gzip.GzipFile(fileobj=file) as stream:
                yield stream
    except FileNotFoundError:
        raise ProdmError(f"there is no file {path}") from None
    except OSError as error:
        raise ProdmError(f"cannot read {path}: {error.strerror or 'it is damaged'}") from error


def _nifti_class(stream: Any) -> Any:  # noqa: ANN401
    """NIfTI-1 or -2, by the length of the header."""
    size = stream.read(4)
    stream.seek(0)
    is_second = 540 in (int.from_bytes(size, "little"), int.from_bytes(size, "big"))
    return nibabel.Nifti2Image if is_second else nibabel.Nifti1Image


def read_nrrd_array(path: Path) -> tuple[NDArray[Any], Grid]:
    """Return the values [Z, Y, X] of an NRRD file, attached or detached, and their grid."""
    try:
        with path.open("rb") as file, damage_as(f"{path} is a damaged NRRD file"):
            header = nrrd.read_header(file)
            shape = _three_axes(tuple(int(n) for n in header["sizes"]), path)
            dtype = _nrrd_dtype(header)
            name = header.get("data file", header.get("datafile"))
            if name is None:
                data = _nrrd_bytes(file, header, math.prod(shape), dtype, path)
            elif name.startswith("LIST") or "%" in name:
                raise ProdmError(f"{path} has its data in several files; convert it to one file")
            else:
                with (path.parent / name).open("rb") as data_file:
                    data = _nrrd_bytes(data_file, header, math.prod(shape), dtype, path)
            values = np.frombuffer(data, dtype).reshape(shape[::-1])
            directions, origin = _nrrd_geometry(header, path)
    except FileNotFoundError as error:
        raise ProdmError(f"there is no file {error.filename}") from None
    except OSError as error:
        raise ProdmError(f"cannot read {path}: {error.strerror}") from error
    return values, _grid(shape, directions, origin, path)


def _nrrd_dtype(header: Mapping[str, Any]) -> np.dtype[Any]:
    order: Literal[">", "<"] = ">" if header.get("endian", "little") == "big" else "<"
    dtype: np.dtype[Any] = np.dtype(nrrd.reader._TYPEMAP_NRRD2NUMPY[header["type"]])
    return dtype.newbyteorder(order)


def _nrrd_bytes(
    file: BufferedReader, header: Mapping[str, Any], count: int, dtype: np.dtype[Any], path: Path
) -> bytes:
    """Values of an NRRD file as bytes, never more of them than the header claims."""
    needed = count * dtype.itemsize
    for _ in range(int(header.get("line skip", header.get("lineskip", 0)))):
        file.readline()
    skip = int(header.get("byte skip", header.get("byteskip", 0)))
    encoding = str(header["encoding"]).lower()
    if encoding == "raw":
        file.seek(-needed, 2) if skip == -1 else file.seek(skip, 1)
        data = file.read(needed)
    elif encoding in ("ascii", "text", "txt"):
        data = np.array(file.read().split(), dtype=dtype).tobytes()
    elif encoding in ("gzip", "gz", "bzip2", "bz2"):
        file.seek(max(skip, 0), 1)
        data = _unpacked(file, encoding, needed)
    else:
        raise ProdmError(f"{path} is encoded as {encoding!r}; convert it to gzip or raw")
    if len(data) != needed:
        raise ProdmError(f"{path} is cut short: {len(data)} of {needed} bytes of data are there")
    return data


def _unpacked(file: IO[bytes], encoding: str, needed: int) -> bytes:
    if encoding.startswith("g"):
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(file.read(), needed)
    return bz2.BZ2Decompressor().decompress(file.read(), needed)


def _nrrd_geometry(
    header: Mapping[str, Any], path: Path
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Columns of steps in LPS mm along the stored axes, and the origin."""
    space = str(header.get("space", "")).lower()
    if space not in SIGNS_TO_LPS or "space directions" not in header:
        raise ProdmError(
            f"{path} does not say how it lies in the patient (its space is {space or 'missing'}); "
            "save it with left-posterior-superior directions"
        )
    signs = np.array(SIGNS_TO_LPS[space], dtype=float)
    steps = np.asarray(header["space directions"], dtype=float)
    steps = steps[~np.isnan(steps).any(axis=1)]  # rows; a trailing axis of one has none
    origin = np.asarray(header.get("space origin", np.zeros(3)), dtype=float)
    return (steps[:3] * signs).T, origin * signs


def _three_axes(shape: tuple[int, ...], path: Path) -> tuple[int, int, int]:
    """Voxels along X, Y, Z; more axes are allowed where they have one entry."""
    sizes = tuple(int(n) for n in shape)
    if len(sizes) < 3 or min(sizes) < 1 or math.prod(sizes[3:]) != 1:
        raise ProdmError(f"{path} has {sizes} values; a scan has three axes")
    x, y, z = sizes[:3]
    if x * y * z > MAX_VOXELS:
        raise ProdmError(f"{path} claims {(z, y, x)} voxels (z, y, x), too many for a CT scan")
    return x, y, z


def _grid(
    shape: tuple[int, int, int],
    steps: NDArray[np.float64],
    origin: NDArray[np.float64],
    path: Path,
) -> Grid:
    """Grid from steps in LPS mm; the columns belong to the stored axes X, Y, Z."""
    if steps.shape != (3, 3) or not (np.isfinite(steps).all() and np.isfinite(origin).all()):
        raise ProdmError(f"{path} has a damaged orientation")
    spacing = np.linalg.norm(steps, axis=0)
    if spacing.min() <= 1e-6:
        raise ProdmError(f"{path} has axes of no length, so it cannot be placed in the patient")
    directions = steps / spacing
    if np.abs(directions.T @ directions - np.eye(3)).max() > SHEAR_TOLERANCE:
        raise ProdmError(
            f"{path} is sheared: its axes are not at right angles, as after a tilted gantry; "
            "resample it to an upright stack first"
        )
    left, _, right = np.linalg.svd(directions)  # the nearest axes at exact right angles
    rows = [(float(a), float(b), float(c)) for a, b, c in left @ right]
    direction: Direction = (rows[0], rows[1], rows[2])
    x, y, z = shape
    dx, dy, dz = (float(s) for s in spacing)
    ox, oy, oz = (float(o) for o in origin)
    return Grid((z, y, x), (dz, dy, dx), (ox, oy, oz), direction)


def _scan(
    values: NDArray[Any], grid: Grid, path: Path, warnings: tuple[str, ...]
) -> tuple[Volume, tuple[str, ...]]:
    if not np.isfinite(values).all():
        raise ProdmError(f"{path} holds values that are not finite numbers (NaN or infinite)")
    lowest, highest = float(values.min()), float(values.max())
    if max(abs(lowest), abs(highest)) > float(np.finfo(np.float32).max):
        raise ProdmError(f"{path} holds values far beyond any HU")
    if lowest > HIGHEST_LOWEST_HU:
        warnings += (f"the lowest value is {lowest:g}, so these may not be Hounsfield units",)
    exact = is_exact_int16(values)
    hu: Hounsfield = values.astype(np.int16 if exact else np.float32)
    hu[hu < PADDING_BELOW_HU] = AIR_HU
    return Volume(np.ascontiguousarray(hu), grid).to_lps(), warnings


def write_nifti(path: Path, volume: Volume) -> None:
    """Write a volume as NIfTI; ``path`` ends in .nii or .nii.gz."""
    _write(path, volume.hu, volume.grid)


def write_nifti_mask(path: Path, labels: NDArray[Any], grid: Grid) -> None:
    """Write labels [Z, Y, X], 0 to 255, as an 8-bit NIfTI mask on a scan's grid."""
    if labels.shape != grid.shape:
        raise ProdmError(f"the mask is {labels.shape} but its grid is {grid.shape}")
    if labels.size and (labels.min() < 0 or labels.max() > 255):
        raise ProdmError(f"mask labels lie in 0 to 255, got {labels.min()} to {labels.max()}")
    _write(path, labels.astype(np.uint8), grid)


def write_nrrd(path: Path, volume: Volume) -> None:
    """Write a volume as one NRRD file, compressed; the same volume gives the same bytes."""
    values = np.ascontiguousarray(volume.hu)
    directions = (volume.grid.affine[:3, axis] for axis in range(3))
    header = (
        "NRRD0005",
        f"type: {'short' if values.dtype == np.int16 else 'float'}",
        "dimension: 3",
        "space: left-posterior-superior",
        f"sizes: {' '.join(str(n) for n in reversed(volume.shape))}",
        f"space directions: {' '.join(_nrrd_vector(step) for step in directions)}",
        "kinds: domain domain domain",
        "endian: little",
        "encoding: gzip",
        f"space origin: {_nrrd_vector(volume.grid.origin_xyz_mm)}",
    )
    with replacing(path) as partial, partial.open("wb") as file:
        file.write(("\n".join(header) + "\n\n").encode("ascii"))
        with gzip.GzipFile("", "wb", compresslevel=4, fileobj=file, mtime=0) as zipped:
            zipped.write(values.astype(values.dtype.newbyteorder("<")).tobytes())


def _nrrd_vector(vector: Any) -> str:  # noqa: ANN401
    return "(" + ",".join(repr(float(value)) for value in vector) + ")"


def _write(path: Path, values: NDArray[Any], grid: Grid) -> None:
    if not path.name.endswith((".nii", ".nii.gz")):
        raise ProdmError(f"a NIfTI file is named .nii or .nii.gz, got {path.name}")
    affine = grid.affine
    affine[:3] = LPS_OF_RAS @ affine[:3]
    image = nibabel.Nifti1Image(values.transpose(2, 1, 0), affine, dtype=values.dtype)
    image.header.set_xyzt_units("mm")
    image.set_qform(affine, code="scanner")
    image.set_sform(affine, code="scanner")
    with replacing(path) as partial, partial.open("wb") as file:
        if path.name.endswith(".gz"):
            with gzip.GzipFile("", "wb", compresslevel=4, fileobj=file, mtime=0) as zipped:
                image.to_stream(zipped)
        else:
            image.to_stream(file)
