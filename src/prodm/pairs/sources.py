"""Where still scans come from: a COCA tree, a folder of files, or phantoms made on the fly."""

import csv
from pathlib import Path

from prodm.errors import ProdmError
from prodm.files import coca
from prodm.pairs.build import Source

SCAN_SUFFIXES = (".nii.gz", ".nii", ".nrrd")
MASK_ENDING = "_calcium"
HEART_ENDING = "_heart"


def find_sources(root: Path) -> list[Source]:
    """Return the scans of a COCA tree or of a folder of NAME.nii.gz with NAME_calcium.nii.gz."""
    if not root.is_dir():
        raise ProdmError(f"{root} is not a folder; name a COCA root or a folder of scans")
    if coca.is_coca(root):
        return coca_sources(root)
    return folder_sources(root)


def coca_sources(root: Path) -> list[Source]:
    """Return the annotated gated scans of a COCA tree."""
    return [
        Source(f"coca-{patient.id}", patient.id, "coca", str(root.resolve()))
        for patient in coca.list_patients(root)
        if patient.gated and patient.xml is not None
    ]


def folder_sources(root: Path) -> list[Source]:
    """Return each NAME of a folder that has NAME.nii.gz and NAME_calcium.nii.gz (or .nrrd).

    Where NAME_heart.nii.gz is there too, calcium-free blocks are drawn from it.
    A patient is a name, unless ``patients.csv`` with the columns name and patient says that
    several scans belong to one.
    """
    patients = _read_patients(root / "patients.csv")
    scans = {}
    for path in sorted(root.iterdir()):
        suffix = next((s for s in SCAN_SUFFIXES if path.name.endswith(s)), None)
        if suffix is not None:
            scans[path.name.removesuffix(suffix)] = path
    sources = []
    for name, path in scans.items():
        mask, heart = scans.get(name + MASK_ENDING), scans.get(name + HEART_ENDING)
        if mask is not None:
            places = [str(p.resolve()) if p is not None else "" for p in (path, mask, heart)]
            sources.append(Source(name, patients.get(name, name), "files", *places))
    if not sources:
        raise ProdmError(
            f"{root} holds no NAME.nii.gz with NAME{MASK_ENDING}.nii.gz beside it, "
            "and is not a COCA tree"
        )
    return sources


def phantom_sources(count: int, seed: int) -> list[Source]:
    """Return ``count`` phantoms with consecutive seeds."""
    return [
        Source(f"phantom-{n:06d}", f"phantom-{n:06d}", "phantom", str(n))
        for n in range(seed, seed + count)
    ]


def _read_patients(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if any(not {"name", "patient"} <= row.keys() for row in rows):
        raise ProdmError(f"{path} needs the columns name and patient")
    return {row["name"]: row["patient"] for row in rows}
