"""Answers must survive anything, and no tab may overwrite what it has not seen."""

import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from prodm.errors import ProdmError
from prodm.study.blinding import SERVED
from prodm.study.criteria import CRITERION_NAMES
from prodm.study.records import Reader
from prodm.study.store import (
    ANSWERS_FILE,
    AnswerStore,
    FinishedError,
    IncompleteError,
    StaleVersionError,
)

StudyMaker = Callable[..., Path]


def first_reading(store: AnswerStore, name: str = "Lee") -> tuple[Reader, str]:
    reader = store.reader_by_name(name)
    assert reader
    return reader, store.readings(reader)[0].reading_id


def complete(store: AnswerStore, reader: Reader, reading_id: str) -> None:
    record = store.reading(reader, reading_id)
    assert record
    version = record.answers.version
    for slot in range(3):
        for criterion in CRITERION_NAMES:
            version = store.rate(reader, reading_id, version, slot, criterion, 3).version
    store.rank(reader, reading_id, version, [2, 1, 3])


def test_a_score_is_kept_and_can_change(study_of: StudyMaker) -> None:
    folder = study_of()
    with AnswerStore(folder) as store:
        reader, reading = first_reading(store)
        assert store.rate(reader, reading, 0, 1, "vessel_fidelity", 4).version == 1
        assert store.rate(reader, reading, 1, 1, "vessel_fidelity", 2).version == 2
    with AnswerStore(folder) as store:
        record = store.reading(reader, reading)
        assert record
        assert record.answers.ratings[1]["vessel_fidelity"] == 2
        assert record.answers.ratings[0]["vessel_fidelity"] is None
        assert [change["rating"]["score"] for _, _, change in store.events()] == [4, 2]


def test_a_stale_tab_changes_nothing(study_of: StudyMaker) -> None:
    with AnswerStore(study_of()) as store:
        reader, reading = first_reading(store)
        store.rate(reader, reading, 0, 0, "vessel_fidelity", 5)
        for version in (0, 2):
            with pytest.raises(StaleVersionError):
                store.rate(reader, reading, version, 0, "vessel_fidelity", 1)
        record = store.reading(reader, reading)
        assert record
        assert record.answers.ratings[0]["vessel_fidelity"] == 5
        assert len(store.events()) == 1


def test_answers_belong_to_one_reader(study_of: StudyMaker) -> None:
    with AnswerStore(study_of()) as store:
        _, reading = first_reading(store, "Lee")
        roy, _ = first_reading(store, "Roy")
        assert store.reading(roy, reading) is None
        with pytest.raises(KeyError):
            store.comment(roy, reading, 0, "not mine")


@pytest.mark.parametrize(
    "ranking", [[1, 2], [1, 1, 2], [0, 1, 2], [1, 2, 4], [1, 2, 3, None], [-1, None, None]]
)
def test_a_ranking_gives_each_place_once(study_of: StudyMaker, ranking: list[int | None]) -> None:
    with AnswerStore(study_of()) as store:
        reader, reading = first_reading(store)
        with pytest.raises(ValueError, match="a ranking gives"):
            store.rank(reader, reading, 0, ranking)
        assert store.events() == []


@pytest.mark.parametrize(
    ("slot", "criterion", "score"),
    [(3, "vessel_fidelity", 3), (-1, "vessel_fidelity", 3), (0, "beauty", 3)]
    + [(0, "vessel_fidelity", score) for score in (0, 6)],
)
def test_what_was_not_asked_is_not_stored(
    study_of: StudyMaker, slot: int, criterion: str, score: int
) -> None:
    with AnswerStore(study_of()) as store:
        reader, reading = first_reading(store)
        with pytest.raises(ValueError, match="no such"):
            store.rate(reader, reading, 0, slot, criterion, score)
        record = store.reading(reader, reading)
        assert record
        assert record.answers.version == 0


def test_finishing_needs_every_answer_and_is_final(study_of: StudyMaker) -> None:
    with AnswerStore(study_of(2)) as store:
        reader, _ = first_reading(store)
        first, second = (record.reading_id for record in store.readings(reader))
        complete(store, reader, first)
        with pytest.raises(IncompleteError):
            store.finish(reader)
        complete(store, reader, second)
        store.finish(reader)
        for change in (
            lambda: store.comment(reader, first, 10, "late"),
            lambda: store.finish(reader),
        ):
            with pytest.raises(FinishedError):
                change()
        lee, roy = store.readers()
        assert lee.finished_at
        assert roy.finished_at is None


def test_an_incomplete_ranking_is_not_complete(study_of: StudyMaker) -> None:
    with AnswerStore(study_of(1)) as store:
        reader, reading = first_reading(store)
        complete(store, reader, reading)
        answers = store.rank(reader, reading, 10, [1, None, 2])
        assert not answers.is_complete


def test_a_failed_change_leaves_nothing_behind(study_of: StudyMaker) -> None:
    folder = study_of()
    with AnswerStore(folder) as store:
        reader, reading = first_reading(store)
        raw = sqlite3.connect(folder / SERVED / ANSWERS_FILE)
        raw.execute(
            "CREATE TRIGGER no_log BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        raw.commit()
        with pytest.raises(sqlite3.DatabaseError, match="full"):
            store.rate(reader, reading, 0, 0, "vessel_fidelity", 3)
        record = store.reading(reader, reading)
        assert record
        assert record.answers.version == 0
        assert record.answers.is_empty
        raw.execute("DROP TRIGGER no_log")
        raw.commit()
        raw.close()
        assert store.rate(reader, reading, 0, 0, "vessel_fidelity", 3).version == 1


def test_confirmed_answers_are_on_the_disk(study_of: StudyMaker) -> None:
    folder = study_of()
    store = AnswerStore(folder)
    reader, reading = first_reading(store)
    store.rate(reader, reading, 0, 0, "vessel_fidelity", 3)
    with AnswerStore(folder) as other:  # as after a crash: the first was never closed
        record = other.reading(reader, reading)
        assert record
        assert record.answers.ratings[0]["vessel_fidelity"] == 3
    store.close()


def test_two_servers_on_one_study_lose_nothing(study_of: StudyMaker) -> None:
    folder = study_of(4)
    failures: list[BaseException] = []

    def answer(name: str) -> None:
        try:
            with AnswerStore(folder) as store:
                reader, _ = first_reading(store, name)
                for record in store.readings(reader):
                    complete(store, reader, record.reading_id)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=answer, args=(name,)) for name in ("Lee", "Roy")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with AnswerStore(folder) as store:
        assert all(r.answers.is_complete for who in store.readers() for r in store.readings(who))
        assert len(store.events()) == 2 * 4 * 10


def test_tokens_open_and_nothing_else_does(study_of: StudyMaker) -> None:
    with AnswerStore(study_of()) as store:
        lee, roy = store.readers()
        assert lee.token != roy.token
        assert store.reader_by_token(lee.token.upper() + " ") == lee
        for wrong in ("", "Lee", lee.token[:-1], lee.token + "x", "é" * 29):
            assert store.reader_by_token(wrong) is None


def test_answers_are_for_their_owner_alone(study_of: StudyMaker) -> None:
    mode = (study_of() / SERVED / ANSWERS_FILE).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize("name", ["", "  ", "x" * 81, "a\x00b"])
def test_readers_need_a_name(study_of: StudyMaker, name: str) -> None:
    with pytest.raises(ProdmError, match="a reader needs a name"):
        study_of(readers=(name,))


def test_names_are_unique(study_of: StudyMaker) -> None:
    with pytest.raises(ProdmError, match="has a reader 'lee' already"):
        study_of(readers=("Lee", "lee"))


def test_a_missing_or_foreign_file_is_refused(study_of: StudyMaker, tmp_path: Path) -> None:
    with pytest.raises(ProdmError, match="is not there"):
        AnswerStore(tmp_path)
    folder = study_of()
    with pytest.raises(ProdmError, match="exists already"):
        AnswerStore(folder, create=True)
    (folder / SERVED / ANSWERS_FILE).write_bytes(b"not a database" * 100)
    with pytest.raises(ProdmError, match="cannot open the file of answers"):
        AnswerStore(folder)
