"""Who sees what, where, and under which name.

A study on disk has two halves. The server reads the first; the second says which method is
which, and nobody opens it before the report:

    STUDY/served/study.json       what the page shows, with no method and no case by name
    STUDY/served/images/*.bin     patches under random names: int16 HU, little-endian, [Z, Y, X]
    STUDY/served/answers.sqlite   readers, their orders, their answers
    STUDY/key/key.json            image -> case and method
    STUDY/key/run.json            the command that made the study (it holds the seed)

All images of a case have one size in bytes, all files one time stamp, and they are written in
random order, so that neither a listing nor a transfer tells methods apart.

Each reader goes through the cases in an order of their own, and in each case the methods
stand under M1, M2, ... in an order of its own. Repeated cases come back later under new names.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prodm.errors import ProdmError
from prodm.runs import write_json
from prodm.study.cases import CasePatches
from prodm.study.criteria import CRITERIA
from prodm.volume import Index, Vector

SERVED = "served"
KEY = "key"
STUDY_FILE = "study.json"
KEY_FILE = "key.json"
IMAGES = "images"
IMAGE_SUFFIX = ".bin"
NAME_BYTES = 16  # 128 random bits
MANY_SHUFFLES = 200

# Width and level in HU. Calcium spans the model's own range, -200 to 800 HU.
WINDOW_PRESETS = (
    ("Mediastinum", 400, 40),
    ("Calcium", 1000, 300),
    ("Bone", 1800, 400),
    ("Lung", 1500, -600),
)


@dataclass(frozen=True)
class BlindCase:
    """A case as the server knows it: images by random name, in the order of those names."""

    case_id: str
    shape: Index
    spacing_mm: Vector
    images: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """Size of each of its images."""
        return 2 * int(np.prod(self.shape))


@dataclass(frozen=True)
class BlindStudy:
    """All that the server knows of a study."""

    study_id: str
    title: str
    num_methods: int
    num_repeats: int
    cases: tuple[BlindCase, ...]

    def case(self, case_id: str) -> BlindCase:
        """Return one case."""
        return next(case for case in self.cases if case.case_id == case_id)


@dataclass(frozen=True)
class Reading:
    """One showing of a case to one reader: what stands under M1, M2, ..."""

    reading_id: str
    case_id: str
    is_repeat: bool
    images: tuple[str, ...]  # slot by slot
    image_ids: tuple[str, ...]  # what the browser asks for, drawn anew for each showing


@dataclass(frozen=True)
class Key:
    """What unblinds a study."""

    study_id: str
    case_names: dict[str, str]  # by case id
    methods: dict[str, str]  # by image name
    method_order: tuple[str, ...]  # as the study's maker named them


def random_name(rng: np.random.Generator) -> str:
    """Draw a name that nobody can guess and that means nothing.

    >>> len(random_name(np.random.default_rng()))
    32
    """
    return rng.bytes(NAME_BYTES).hex()


def blind(
    cases: Sequence[CasePatches],
    folder: Path,
    *,
    title: str,
    num_repeats: int,
    rng: np.random.Generator,
) -> BlindStudy:
    """Write both halves of a study into an empty folder; the answers come later."""
    method_order = tuple(cases[0].patches)
    if not 0 <= num_repeats <= len(cases):
        raise ProdmError(
            f"repeated cases are drawn from the {len(cases)} of the study, got {num_repeats}"
        )
    images_folder = folder / SERVED / IMAGES
    images_folder.mkdir(parents=True)
    key_folder = folder / KEY
    key_folder.mkdir(mode=0o700)

    named = {(case.name, method): random_name(rng) for case in cases for method in method_order}
    case_ids = {case.name: random_name(rng) for case in cases}
    blind_cases = [
        BlindCase(
            case_ids[case.name],
            case.grid.shape,
            case.grid.spacing_mm,
            tuple(sorted(named[case.name, method] for method in method_order)),
        )
        for case in cases
    ]
    by_name = {case.name: case for case in cases}
    order = list(named)
    for n in rng.permutation(len(order)):
        case_name, method = order[n]
        path = images_folder / (named[order[n]] + IMAGE_SUFFIX)
        path.write_bytes(by_name[case_name].patches[method].astype("<i2").tobytes())
        os.utime(path, (0, 0))

    study = BlindStudy(
        study_id=random_name(rng),
        title=title,
        num_methods=len(method_order),
        num_repeats=num_repeats,
        cases=tuple(sorted(blind_cases, key=lambda case: case.case_id)),
    )
    write_json(folder / SERVED / STUDY_FILE, asdict(study))
    key_path = key_folder / KEY_FILE
    write_json(
        key_path,
        {
            "study_id": study.study_id,
            "method_order": method_order,
            "case_names": {case_id: name for name, case_id in case_ids.items()},
            "methods": {image: method for (_, method), image in named.items()},
        },
    )
    key_path.chmod(0o600)
    return study


def plan_readings(study: BlindStudy, rng: np.random.Generator) -> list[Reading]:
    """Draw what one reader sees, in the order in which they see it."""
    ids = [case.case_id for case in study.cases]
    repeated = [ids[n] for n in rng.permutation(len(ids))[: study.num_repeats]]
    readings: list[Reading] = []
    seen: set[str] = set()
    for case_id in _shuffled_apart(ids + repeated, rng):
        images = study.case(case_id).images
        readings.append(
            Reading(
                random_name(rng),
                case_id,
                case_id in seen,
                tuple(images[n] for n in rng.permutation(len(images))),
                tuple(random_name(rng) for _ in images),
            )
        )
        seen.add(case_id)
    return readings


def _shuffled_apart(ids: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Shuffle, and keep the two showings of a repeated case as far apart as chance allows.

    A case that comes straight after itself would measure memory, not judgement.
    """
    wanted = len(ids) // 3
    best: tuple[int, list[str]] = (-1, list(ids))
    for _ in range(MANY_SHUFFLES):
        order = [ids[n] for n in rng.permutation(len(ids))]
        nearest = _nearest_repeat(order)
        if nearest >= wanted:
            return order
        best = max(best, (nearest, order), key=lambda pair: pair[0])
    return best[1]


def _nearest_repeat(order: Sequence[str]) -> int:
    """Return the smallest distance between two showings of one case."""
    last: dict[str, int] = {}
    nearest = len(order)
    for position, case_id in enumerate(order):
        if case_id in last:
            nearest = min(nearest, position - last[case_id])
        last[case_id] = position
    return nearest


def read_study(folder: Path) -> BlindStudy:
    """Read the served half, and check that every image is there and whole."""
    content = _read_object(folder / SERVED / STUDY_FILE, "a study made by prodm study new")
    try:
        study = BlindStudy(
            study_id=str(content["study_id"]),
            title=str(content["title"]),
            num_methods=int(content["num_methods"]),
            num_repeats=int(content["num_repeats"]),
            cases=tuple(_blind_case(case) for case in content["cases"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProdmError(f"the study in {folder} is damaged: study.json is not as written") from (
            error
        )
    for case in study.cases:
        for image in case.images:
            path = image_path(folder, image)
            if not path.is_file() or path.stat().st_size != case.num_bytes:
                raise ProdmError(f"the study in {folder} is damaged: image {image} is not whole")
    return study


def image_path(folder: Path, image: str) -> Path:
    """Return where an image lies; only names from study.json may come here."""
    return folder / SERVED / IMAGES / (image + IMAGE_SUFFIX)


def read_key(path: Path) -> Key:
    """Read the key, from its file or from the folder that holds it."""
    path = path / KEY_FILE if path.is_dir() else path
    content = _read_object(path, "the key of a study")
    try:
        return Key(
            study_id=str(content["study_id"]),
            case_names=dict(content["case_names"]),
            methods=dict(content["methods"]),
            method_order=tuple(content["method_order"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProdmError(f"{path} is not the key of a study") from error


def page_settings(study: BlindStudy) -> dict[str, Any]:
    """Return what the page needs to know before the first case."""
    return {
        "title": study.title,
        "num_methods": study.num_methods,
        "criteria": [asdict(criterion) for criterion in CRITERIA],
        "window_presets": [
            {"name": name, "width": width, "level": level} for name, width, level in WINDOW_PRESETS
        ],
    }


def _blind_case(content: Mapping[str, Any]) -> BlindCase:
    z, y, x = (int(n) for n in content["shape"])
    dz, dy, dx = (float(s) for s in content["spacing_mm"])
    images = tuple(str(image) for image in content["images"])
    if not all(len(image) == 2 * NAME_BYTES and image.isalnum() for image in images):
        raise ValueError("an image name that prodm did not draw")
    return BlindCase(str(content["case_id"]), (z, y, x), (dz, dy, dx), images)


def _read_object(path: Path, what: str) -> dict[str, Any]:
    import json

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ProdmError(f"{path} is not there; need {what}") from None
    except ValueError as error:
        raise ProdmError(f"{path} is not {what}: {error}") from error
    if not isinstance(content, dict):
        raise ProdmError(f"{path} is not {what}")
    return content
