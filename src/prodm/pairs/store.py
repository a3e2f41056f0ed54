"""The store of training pairs: blocks of still and moving calcium, by scan and by patient.

On disk, a folder:

    store.json        format, settings, seed, counts; written last, so its presence means complete
    blocks.csv        one line per block: scan, patient, split, place, spacing, calcium
    motions.csv       one line per scan and motion: profile, amplitude, number of angles, …
    skipped.csv       scans that could not be used, with the reason
    scans/<scan>/     one Zarr group per scan, written whole by one worker
        still       [block, Z, Y, X]          HU, int16
        background  [block, Z, Y, X]          HU, int16: the calcium inpainted
        calcium     [block, Z, Y, X]          labels, uint8
        moving      [block, motion, Z, Y, X]  HU, int16; no motions where only stills are kept

Every chunk ends in a checksum, so that a damaged block is noticed when it is read. The split
is a function of the patient's id alone: nobody is in two parts, in this store or the next.
"""

import csv
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from prodm.errors import ProdmError
from prodm.runs import new_folder, replacing, write_json

Split = Literal["train", "validation", "test"]
FORMAT = "prodm-pairs-1"
ARRAYS = ("still", "background", "calcium", "moving")
MOST_REMEMBERED = 1024  # moving blocks


def split_of(patient: str) -> Split:
    """Return the part of the data a patient belongs to: 72 % train, 8 % validation, 20 % test.

    >>> [split_of(f"patient-{n}") for n in range(4)]
    ['train', 'train', 'train', 'validation']
    """
    digest = hashlib.sha256(patient.encode()).digest()
    percentile = int.from_bytes(digest[:8], "big") % 100
    if percentile < 20:
        return "test"
    return "validation" if percentile < 28 else "train"


@dataclass(frozen=True)
class BlockRow:
    """One line of ``blocks.csv``. The corner is that of the stored block, margin included."""

    scan: str
    block: int
    patient: str
    split: Split
    corner_z: int
    corner_y: int
    corner_x: int
    spacing_z_mm: float
    spacing_y_mm: float
    spacing_x_mm: float
    calcium_voxels: int  # 0 marks a calcium-free block

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        """Spacing (z, y, x)."""
        return self.spacing_z_mm, self.spacing_y_mm, self.spacing_x_mm


@dataclass(frozen=True)
class MotionRow:
    """One line of ``motions.csv``; the trajectory itself is in the scan's group."""

    scan: str
    motion: int
    profile: str
    amplitude_px: float
    num_angles: int
    span_deg: float
    start_deg: float


@dataclass(frozen=True, eq=False)
class ScanPairs:
    """All that is stored of one scan."""

    scan: str
    patient: str
    spacing_mm: tuple[float, float, float]
    corners: tuple[tuple[int, int, int], ...]  # of the stored blocks, one per block
    trajectories: tuple[Mapping[str, Any], ...]  # one per motion, fit for JSON
    amplitudes_px: tuple[float, ...]  # largest excursion of each
    still: NDArray[np.int16]
    background: NDArray[np.int16]
    calcium: NDArray[np.uint8]
    moving: NDArray[np.int16]


def write_scan(store: Path, pairs: ScanPairs) -> None:
    """Write the group of one scan, whole or not at all; an existing one is left alone."""
    import zarr
    from zarr.codecs import Crc32cCodec, ZstdCodec

    folder = store / "scans" / pairs.scan
    if folder.exists():
        return
    try:
        with new_folder(folder) as partial:
            group = zarr.open_group(partial, mode="w")
            group.attrs.update(
                {
                    "patient": pairs.patient,
                    "spacing_mm": list(pairs.spacing_mm),
                    "corners": [list(corner) for corner in pairs.corners],
                    "trajectories": [dict(trajectory) for trajectory in pairs.trajectories],
                    "amplitudes_px": list(pairs.amplitudes_px),
                }
            )
            for name in ARRAYS:
                values: NDArray[Any] = getattr(pairs, name)
                leading = values.ndim - 3
                array = group.create_array(
                    name,
                    shape=values.shape,
                    dtype=values.dtype,
                    chunks=(*[1] * leading, *values.shape[leading:]),
                    shards=tuple(max(n, 1) for n in values.shape),
                    compressors=[ZstdCodec(level=3), Crc32cCodec()],
                )
                if values.size:
                    array[...] = values
    except OSError:
        if not folder.exists():  # else another worker was first, with the same content
            raise


def scan_is_stored(store: Path, scan: str) -> bool:
    """Tell whether the group of a scan is complete."""
    return (store / "scans" / scan).is_dir()


def finish(
    store: Path, settings: Mapping[str, Any], skipped: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Write the tables and, last of all, ``store.json``; return its content."""
    import zarr

    for stale in (store / "scans").glob(".*"):
        shutil.rmtree(stale, ignore_errors=True)
    blocks: list[BlockRow] = []
    motions: list[MotionRow] = []
    for folder in sorted((store / "scans").iterdir()):
        group = zarr.open_group(folder, mode="r")
        blocks += _block_rows(folder.name, group)
        motions += _motion_rows(folder.name, group)
    if not blocks:
        reason = f"; the first reason: {skipped[0][1]}" if skipped else ""
        raise ProdmError(f"no scan could be used, so there is no store{reason}")
    _write_csv(store / "blocks.csv", BlockRow, blocks)
    _write_csv(store / "motions.csv", MotionRow, motions)
    with replacing(store / "skipped.csv") as partial, partial.open("w", newline="") as file:
        csv.writer(file).writerows([("scan", "reason"), *sorted(skipped)])
    patients = {row.patient: row.split for row in blocks}
    summary = {
        "format": FORMAT,
        "settings": dict(settings),
        "scans": len({row.scan for row in blocks}),
        "patients": {
            split: sum(part == split for part in patients.values())
            for split in ("train", "validation", "test")
        },
        "blocks": len(blocks),
        "calcium_free_blocks": sum(row.calcium_voxels == 0 for row in blocks),
        "motions": len(motions),
        "sha256": hashlib.sha256(
            (store / "blocks.csv").read_bytes() + (store / "motions.csv").read_bytes()
        ).hexdigest(),
    }
    write_json(store / "store.json", summary)
    return summary


def _block_rows(scan: str, group: Any) -> list[BlockRow]:  # noqa: ANN401
    patient = str(group.attrs["patient"])
    dz, dy, dx = (float(step) for step in group.attrs["spacing_mm"])
    rows = []
    for n, ((z, y, x), labels) in enumerate(
        zip(group.attrs["corners"], group["calcium"][...], strict=True)
    ):
        num_voxels = int((labels > 0).sum())
        split = split_of(patient)
        rows.append(BlockRow(scan, n, patient, split, z, y, x, dz, dy, dx, num_voxels))
    return rows


def _motion_rows(scan: str, group: Any) -> list[MotionRow]:  # noqa: ANN401
    return [
        MotionRow(
            scan,
            n,
            trajectory["profile"],
            round(amplitude_px, 3),
            trajectory["num_angles"],
            trajectory["span_deg"],
            round(trajectory["start_deg"], 3),
        )
        for n, (trajectory, amplitude_px) in enumerate(
            zip(group.attrs["trajectories"], group.attrs["amplitudes_px"], strict=True)
        )
    ]


def _write_csv(path: Path, row_type: type, rows: Iterable[Any]) -> None:
    with replacing(path) as partial, partial.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(row_type.__dataclass_fields__)  # type: ignore[attr-defined]
        writer.writerows(asdict(row).values() for row in rows)


@dataclass(frozen=True)
class Pairs:
    """A complete store, opened for reading."""

    folder: Path

    def __post_init__(self) -> None:
        if not (self.folder / "store.json").is_file():
            started = (self.folder / "scans").is_dir()
            advice = "run prodm build again to finish it" if started else "make it with prodm build"
            raise ProdmError(f"{self.folder} is not a finished store of pairs; {advice}")
        if self.summary.get("format") != FORMAT:
            raise ProdmError(f"{self.folder} has format {self.summary.get('format')}, not {FORMAT}")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Content of ``store.json``."""
        try:
            content = json.loads((self.folder / "store.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ProdmError(f"{self.folder / 'store.json'} cannot be read: {error}") from error
        return dict(content)

    @cached_property
    def blocks(self) -> tuple[BlockRow, ...]:
        """All blocks, in the order of ``blocks.csv``."""
        return tuple(_read_csv(self.folder / "blocks.csv", BlockRow))

    @cached_property
    def motions(self) -> tuple[MotionRow, ...]:
        """All motions, in the order of ``motions.csv``."""
        return tuple(_read_csv(self.folder / "motions.csv", MotionRow))

    def read(
        self, name: Literal["still", "background", "calcium"], row: BlockRow
    ) -> NDArray[np.int16]:
        """Return one stored block [Z, Y, X], margin included."""
        return self._array(row.scan, name, (row.block,))

    def read_moving(self, row: BlockRow, motion: int) -> NDArray[np.int16]:
        """Return one stored block [Z, Y, X] as one motion shows it."""
        return self._array(row.scan, "moving", (row.block, motion))

    @cached_property
    def read_moving_again(self) -> Callable[[BlockRow, int], NDArray[np.int16]]:
        """Return ``read_moving`` that remembers what it read last, 0.4 GB of it; do not write."""
        return lru_cache(maxsize=MOST_REMEMBERED)(self.read_moving)

    def trajectories(self, scan: str) -> list[dict[str, Any]]:
        """Return what ``Trajectory.from_dict`` reads, one per motion of a scan."""
        import zarr

        group = zarr.open_group(self.folder / "scans" / scan, mode="r")
        return [dict(trajectory) for trajectory in group.attrs["trajectories"]]  # type: ignore

    def _array(self, scan: str, name: str, index: tuple[int, ...]) -> NDArray[np.int16]:
        import zarr

        try:
            group = zarr.open_group(self.folder / "scans" / scan, mode="r")
            values: NDArray[np.int16] = np.asarray(group[name][index])  # type: ignore[index]
        except IndexError:
            raise ProdmError(f"scan {scan} has no stored {name} {index}") from None
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise ProdmError(
                f"block {index[0]} of scan {scan} in {self.folder} is damaged ({error}); "
                f"delete scans/{scan} and run prodm build again"
            ) from error
        return values


def _read_csv(path: Path, row_type: type[Any]) -> list[Any]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        kinds = {name: field.type for name, field in row_type.__dataclass_fields__.items()}
        convert = {int: int, float: float, str: str, Split: str}
        return [row_type(**{n: convert[kinds[n]](row[n]) for n in kinds}) for row in rows]
    except (OSError, KeyError, ValueError) as error:
        raise ProdmError(f"{path} cannot be read: {error}") from error
