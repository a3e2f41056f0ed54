"""Unblinded results: what each reader said of each method."""

from dataclasses import dataclass
from pathlib import Path

from prodm.errors import ProdmError
from prodm.study.blinding import KEY, Key, read_key, read_study
from prodm.study.records import Reader, ReadingRecord
from prodm.study.store import AnswerStore


@dataclass(frozen=True)
class Rating:
    """One score."""

    reader: str
    case: str
    is_repeat: bool
    label: str  # under which the reader saw it, M1, M2, ...
    method: str
    criterion: str
    score: int


@dataclass(frozen=True)
class Placing:
    """The place of one method in a reader's ranking of one case; 1 is best."""

    reader: str
    case: str
    is_repeat: bool
    label: str
    method: str
    place: int


@dataclass(frozen=True)
class Comment:
    """What a reader wrote of a case, and what stood under the labels they may have used."""

    reader: str
    case: str
    is_repeat: bool
    labels: str  # M1 = ..., M2 = ...
    text: str


@dataclass(frozen=True)
class Results:
    """A whole study, unblinded."""

    title: str
    methods: tuple[str, ...]
    cases: tuple[str, ...]
    readers: tuple[str, ...]
    unfinished: tuple[str, ...]  # readers, with what they have done
    ratings: tuple[Rating, ...]
    placings: tuple[Placing, ...]
    comments: tuple[Comment, ...]


def read_results(
    folder: Path, key_path: Path | None = None, *, unfinished: bool = False
) -> Results:
    """Unblind a study.

    Refuses while a reader has not finished, because a look at the methods could change what
    is read after it. ``unfinished=True`` unblinds all the same.
    """
    study = read_study(folder)
    with AnswerStore(folder) as store:
        readers = store.readers()
        readings = {reader.name: store.readings(reader) for reader in readers}
    if not readers:
        raise ProdmError(f"the study in {folder} has no readers; add them with study serve")
    open_readers = tuple(
        f"{reader.name} ({_num_complete(readings[reader.name])} of "
        f"{len(readings[reader.name])} cases)"
        for reader in readers
        if reader.finished_at is None
    )
    if open_readers and not unfinished:
        raise ProdmError(
            f"a study is unblinded when all readers have finished, but {', '.join(open_readers)} "
            "have not; wait, or add --unfinished"
        )
    key = read_key(key_path or folder / KEY)
    if key.study_id != study.study_id:
        raise ProdmError("the key belongs to another study; name the right one with --key")
    return _unblind(study.title, readers, readings, key, open_readers)


def _num_complete(readings: list[ReadingRecord]) -> int:
    return sum(record.answers.is_complete for record in readings)


def _unblind(
    title: str,
    readers: list[Reader],
    readings: dict[str, list[ReadingRecord]],
    key: Key,
    unfinished: tuple[str, ...],
) -> Results:
    ratings: list[Rating] = []
    placings: list[Placing] = []
    comments: list[Comment] = []
    for reader in readers:
        for record in readings[reader.name]:
            case = key.case_names[record.case_id]
            methods = [key.methods[image] for image in record.images]
            labels = [f"M{slot + 1}" for slot in range(len(methods))]
            for slot, scores in enumerate(record.answers.ratings):
                place = record.answers.ranking[slot]
                seen = (reader.name, case, record.is_repeat, labels[slot], methods[slot])
                ratings += [
                    Rating(*seen, criterion, score)
                    for criterion, score in scores.items()
                    if score is not None
                ]
                if place is not None:
                    placings.append(Placing(*seen, place))
            if record.answers.comment.strip():
                legend = ", ".join(
                    f"{label} = {method}" for label, method in zip(labels, methods, strict=True)
                )
                comments.append(
                    Comment(reader.name, case, record.is_repeat, legend, record.answers.comment)
                )
    return Results(
        title,
        key.method_order,
        tuple(sorted(key.case_names.values())),
        tuple(reader.name for reader in readers),
        unfinished,
        tuple(ratings),
        tuple(placings),
        tuple(comments),
    )
