"""Make a study on disk: blinded images, the key, the readers and their orders."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from prodm.errors import ProdmError
from prodm.runs import new_folder, write_run_json
from prodm.study.blinding import KEY, SERVED, blind, plan_readings, read_study
from prodm.study.cases import CasePatches
from prodm.study.records import Reader
from prodm.study.store import ANSWERS_FILE, AnswerStore


@dataclass(frozen=True)
class StudySettings:
    """How a study is made; the cases come apart."""

    title: str = "Reader study"
    readers: tuple[str, ...] = ()
    num_repeats: int = 0
    seed: int | None = None  # None draws from the system; a seed would let one redo the blinding


def check_place(output: Path, *, overwrite: bool) -> None:
    """Refuse a place that is taken, before any work. Answers are never replaced."""
    if (output / SERVED / ANSWERS_FILE).exists():
        with AnswerStore(output) as store:
            if store.events():
                raise ProdmError(f"{output} holds answers of readers; remove it by hand first")
    if output.exists() and not overwrite and (not output.is_dir() or any(output.iterdir())):
        raise ProdmError(f"{output} exists already; choose another place or add --overwrite")


def new_study(
    cases: Sequence[CasePatches],
    output: Path,
    settings: StudySettings,
    *,
    overwrite: bool = False,
) -> list[Reader]:
    """Write a study and return its readers with their tokens."""
    check_place(output, overwrite=overwrite)
    rng = np.random.default_rng(settings.seed)
    with new_folder(output, overwrite=overwrite) as folder:
        study = blind(
            cases, folder, title=settings.title, num_repeats=settings.num_repeats, rng=rng
        )
        with AnswerStore(folder, create=True) as store:
            for name in settings.readers:
                store.add_reader(name, plan_readings(study, rng))
            readers = store.readers()
        inputs = {name: sha for case in cases for name, sha in case.inputs_sha256.items()}
        write_run_json(folder / KEY, asdict(settings), inputs)
    return readers


def add_readers(folder: Path, names: Sequence[str]) -> None:
    """Add readers to a study that is under way; those it has already stay as they are."""
    study = read_study(folder)
    with AnswerStore(folder) as store:
        for name in names:
            if not store.reader_by_name(name):
                store.add_reader(name, plan_readings(study, np.random.default_rng()))
