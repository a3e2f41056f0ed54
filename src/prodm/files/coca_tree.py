"""Where the patients of the COCA data set lie on disk.

    cocacoronarycalciumandchestcts-2/
    ├── Gated_release_final/
    │   ├── patient/<id>/<series folder>/IM-0001-0001.dcm ...
    │   └── calcium_xml/<id>.xml
    └── deidentified_nongated/
        ├── <id>/<id>/IM-0001-0001.dcm ...
        └── scores.xlsx

Names of series folders hold spaces, parentheses and percent signs. Non-gated slices are also
found one folder higher. Gated and non-gated ids are counted apart: they are other patients.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from prodm.errors import ProdmError
from prodm.files.coca_sheet import SheetRow, read_sheet, scan_id

GATED_FOLDER = "Gated_release_final"
NONGATED_FOLDER = "deidentified_nongated"
PATIENT_FOLDER = "patient"
XML_FOLDER = "calcium_xml"
SHEET_NAME = "scores.xlsx"


@dataclass(frozen=True)
class CocaPatient:
    """What the folders and the sheet hold for one id; no image was opened for it."""

    id: str
    gated: bool
    folder: Path | None  # of the slices; None where only an annotation or a row exists
    xml: Path | None = None
    sheet: SheetRow | None = None
    sheet_problem: str | None = None


def list_patients(root: Path) -> list[CocaPatient]:
    """Return the patients below a COCA folder, its parent, or either half of it.

    Only folders and the sheet are read, so this takes well under a second.
    """
    gated, nongated = find_halves(root)
    patients = []
    if gated is not None:
        patients += _list_gated(gated)
    if nongated is not None:
        patients += _list_nongated(nongated)
    if not patients:
        raise ProdmError(f"there is no patient in the COCA folder {root}")
    return patients


def find_patient(root: Path, identifier: str, *, gated: bool = True) -> CocaPatient:
    """Return one patient by the name of its folder; only its half is looked at."""
    gated_half, nongated_half = find_halves(root)
    patients: list[CocaPatient] = []
    if gated and gated_half is not None:
        patients = _list_gated(gated_half)
    elif not gated and nongated_half is not None:
        patients = _list_nongated(nongated_half)
    for patient in patients:
        if patient.id == identifier:
            return patient
    kind = "gated" if gated else "non-gated"
    raise ProdmError(f"there is no {kind} patient {identifier} in the COCA folder {root}")


def is_coca(root: Path) -> bool:
    """Whether a folder is the COCA data set, its parent, or one of its halves."""
    try:
        return any(find_halves(root))
    except ProdmError:
        return False


def find_halves(root: Path) -> tuple[Path | None, Path | None]:
    """Return the gated and the non-gated half of the data set that ``root`` means."""
    if not root.is_dir():
        raise ProdmError(f"there is no folder {root}")
    resolved = root.resolve()
    if resolved.name in (PATIENT_FOLDER, XML_FOLDER) and _is_gated(resolved.parent):
        return resolved.parent, None
    if _is_gated(root):
        return root, None
    has_sheet = (root / SHEET_NAME).is_file() and not any(_halves_in(root))
    if resolved.name == NONGATED_FOLDER or has_sheet:
        return None, root
    places = [place for place in (root, *_folders(root)) if any(_halves_in(place))]
    if len(places) > 1:
        names = ", ".join(place.name for place in places[:3])
        raise ProdmError(f"{root} holds several COCA folders ({names}); name one of them")
    if not places:
        raise ProdmError(
            f"{root} is no COCA folder: it needs {GATED_FOLDER} (with {PATIENT_FOLDER} and "
            f"{XML_FOLDER}) or {NONGATED_FOLDER} (with {SHEET_NAME}) inside"
        )
    return _halves_in(places[0])


def _halves_in(folder: Path) -> tuple[Path | None, Path | None]:
    gated, nongated = folder / GATED_FOLDER, folder / NONGATED_FOLDER
    return (gated if gated.is_dir() else None, nongated if nongated.is_dir() else None)


def _is_gated(folder: Path) -> bool:
    return (folder / PATIENT_FOLDER).is_dir() or (folder / XML_FOLDER).is_dir()


def _folders(folder: Path) -> list[Path]:
    try:
        entries = [
            entry
            for entry in folder.iterdir()
            if not entry.name.startswith((".", "__MACOSX")) and entry.is_dir()
        ]
    except OSError as error:
        raise ProdmError(f"cannot read the folder {folder}: {error.strerror}") from error
    return sorted(entries, key=lambda entry: _natural(entry.name))


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    """Sort key that puts 9 before 10."""
    return tuple(
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)
    )


def _list_gated(half: Path) -> list[CocaPatient]:
    patients, annotations = half / PATIENT_FOLDER, half / XML_FOLDER
    folders = {path.name: path for path in _folders(patients)} if patients.is_dir() else {}
    files = sorted(annotations.iterdir()) if annotations.is_dir() else []
    xmls = {
        path.stem: path
        for path in files
        if path.suffix.lower() == ".xml" and not path.name.startswith(".")
    }
    return [
        CocaPatient(name, True, folders.get(name), xmls.get(name))
        for name in sorted(folders.keys() | xmls.keys(), key=_natural)
    ]


def _list_nongated(half: Path) -> list[CocaPatient]:
    sheets = [path for path in (half / SHEET_NAME, half.parent / SHEET_NAME) if path.is_file()]
    rows: dict[str, SheetRow] = {}
    sheet_problem = None if sheets else f"no {SHEET_NAME}"
    if sheets:
        try:
            rows = read_sheet(sheets[0])
        except ProdmError as error:
            sheet_problem = str(error)
    patients = [
        CocaPatient(
            folder.name,
            False,
            folder,
            sheet=rows.get(scan_id(folder.name)),
            sheet_problem=sheet_problem,
        )
        for folder in _folders(half)
    ]
    found = {scan_id(patient.id) for patient in patients}
    without_scan = [
        CocaPatient(name, False, None, sheet=row) for name, row in rows.items() if name not in found
    ]
    return sorted(patients + without_scan, key=lambda patient: _natural(patient.id))
