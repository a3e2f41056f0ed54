"""The answers, in SQLite: every click is on the disk before the page says so.

Each reading (one showing of a case to one reader) has a version, and each change names the
version that it was made on. A change made on an older one, by a second tab that has not seen
the latest answers, is refused and gets the present state, so nothing is overwritten unseen.
``events`` keeps every change that was ever made, in order, and is never edited.

Write-ahead logging with full synchronisation: a killed server or a power cut loses no answer
that was confirmed, and readers do not wait for each other. Keep a study on a local disk; such
logs do not work on network drives.
"""

import json
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prodm.errors import ProdmError
from prodm.study.blinding import SERVED, Reading
from prodm.study.criteria import CRITERION_NAMES, SCORES
from prodm.study.records import Answers, Reader, ReadingRecord

ANSWERS_FILE = "answers.sqlite"
BUSY_TIMEOUT_S = 30.0
TOKEN_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that look alike
TOKEN_GROUPS, TOKEN_GROUP_LENGTH = 5, 5  # 25 letters, about 124 bits
MAX_NAME_LENGTH = 80

SCHEMA = """
CREATE TABLE readers (
    reader_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE COLLATE NOCASE,
    token TEXT NOT NULL UNIQUE,
    finished_at TEXT
);
CREATE TABLE readings (
    reading_id TEXT PRIMARY KEY,
    reader_id INTEGER NOT NULL REFERENCES readers,
    position INTEGER NOT NULL,
    case_id TEXT NOT NULL,
    is_repeat INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    ranking TEXT NOT NULL,
    comment TEXT NOT NULL DEFAULT '',
    UNIQUE (reader_id, position)
);
CREATE TABLE slots (
    reading_id TEXT NOT NULL REFERENCES readings,
    slot INTEGER NOT NULL,
    image TEXT NOT NULL,
    image_id TEXT NOT NULL UNIQUE,
    PRIMARY KEY (reading_id, slot)
);
CREATE TABLE ratings (
    reading_id TEXT NOT NULL REFERENCES readings,
    slot INTEGER NOT NULL,
    criterion TEXT NOT NULL,
    score INTEGER NOT NULL CHECK (score BETWEEN 1 AND 5),
    PRIMARY KEY (reading_id, slot, criterion)
);
CREATE TABLE events (
    event_id INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    reader_id INTEGER NOT NULL REFERENCES readers,
    reading_id TEXT,
    version INTEGER,
    change TEXT NOT NULL
);
"""


class StaleVersionError(Exception):
    """The change was made on answers that are no longer the latest."""


class FinishedError(Exception):
    """The reader has finished; nothing changes any more."""


class IncompleteError(Exception):
    """Answers are missing, so the reader cannot finish yet."""


def new_token() -> str:
    """Draw what lets a reader in: easy to type, impossible to guess."""
    groups = (
        "".join(secrets.choice(TOKEN_LETTERS) for _ in range(TOKEN_GROUP_LENGTH))
        for _ in range(TOKEN_GROUPS)
    )
    return "-".join(groups)


class AnswerStore:
    """The database of one study. Safe to share between threads and between processes."""

    def __init__(self, study_folder: Path, *, create: bool = False) -> None:
        path = study_folder / SERVED / ANSWERS_FILE
        if path.exists() == create:
            state = "exists already" if create else "is not there"
            raise ProdmError(f"the file of answers {path} {state}")
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA foreign_keys = ON")
            if create:
                path.chmod(0o600)
                self._connection.executescript(SCHEMA)
            self._connection.execute("SELECT count(*) FROM readers").fetchone()
        except sqlite3.DatabaseError as error:
            raise ProdmError(f"cannot open the file of answers {path}: {error}") from error

    def close(self) -> None:
        """Fold the log into the file and close it."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> "AnswerStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def add_reader(self, name: str, readings: Sequence[Reading]) -> Reader:
        """Add a reader and what they will see."""
        name = " ".join(name.split())
        if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
            raise ProdmError(f"a reader needs a name of up to {MAX_NAME_LENGTH} letters")
        if self.reader_by_name(name):
            raise ProdmError(f"the study has a reader {name!r} already")
        token = new_token()
        with self._transaction() as connection:
            reader_id = connection.execute(
                "INSERT INTO readers (name, token) VALUES (?, ?)", (name, token)
            ).lastrowid
            assert reader_id is not None
            for position, reading in enumerate(readings):
                connection.execute(
                    "INSERT INTO readings (reading_id, reader_id, position, case_id, is_repeat,"
                    " ranking) VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        reading.reading_id,
                        reader_id,
                        position,
                        reading.case_id,
                        reading.is_repeat,
                        json.dumps([None] * len(reading.images)),
                    ),
                )
                connection.executemany(
                    "INSERT INTO slots VALUES (?, ?, ?, ?)",
                    [
                        (reading.reading_id, slot, image, image_id)
                        for slot, (image, image_id) in enumerate(
                            zip(reading.images, reading.image_ids, strict=True)
                        )
                    ],
                )
        return Reader(reader_id, name, token, None)

    def readers(self) -> list[Reader]:
        """Return all readers, in the order in which they were added."""
        rows = self._rows(
            "SELECT reader_id, name, token, finished_at FROM readers ORDER BY reader_id"
        )
        return [Reader(*row) for row in rows]

    def reader_by_name(self, name: str) -> Reader | None:
        """Find a reader; case and surplus spaces do not matter."""
        wanted = " ".join(name.split()).casefold()
        return next((r for r in self.readers() if r.name.casefold() == wanted), None)

    def reader_by_token(self, token: str) -> Reader | None:
        """Find a reader by their token, in the same time whether or not it fits."""
        given = token.strip().lower().encode()
        found = None
        for reader in self.readers():
            if secrets.compare_digest(reader.token.encode(), given):
                found = reader
        return found

    def readings(self, reader: Reader) -> list[ReadingRecord]:
        """Return all readings of a reader with their answers, in their order."""
        ids = self._rows(
            "SELECT reading_id FROM readings WHERE reader_id = ? ORDER BY position",
            (reader.reader_id,),
        )
        return [record for (i,) in ids if (record := self.reading(reader, i))]

    def reading(self, reader: Reader, reading_id: str) -> ReadingRecord | None:
        """Return one reading, or None if it is not this reader's."""
        with self._lock:
            return _reading(self._connection, reader, reading_id)

    def image_of(self, reader: Reader, image_id: str) -> tuple[str, str] | None:
        """Return the image's name and its case, or None if it is not shown to this reader."""
        rows = self._rows(
            "SELECT slots.image, readings.case_id FROM slots JOIN readings USING (reading_id)"
            " WHERE image_id = ? AND reader_id = ?",
            (image_id, reader.reader_id),
        )
        return (rows[0][0], rows[0][1]) if rows else None

    def rate(
        self, reader: Reader, reading_id: str, version: int, slot: int, criterion: str, score: int
    ) -> Answers:
        """Store one score."""
        if criterion not in CRITERION_NAMES or score not in SCORES:
            raise ValueError("no such criterion or score")
        with self._change(
            reader,
            reading_id,
            version,
            {"rating": {"slot": slot, "criterion": criterion, "score": score}},
        ) as (connection, record):
            if not 0 <= slot < len(record.images):
                raise ValueError("no such slot")
            connection.execute(
                "INSERT INTO ratings VALUES (?, ?, ?, ?) ON CONFLICT (reading_id, slot, criterion)"
                " DO UPDATE SET score = excluded.score",
                (reading_id, slot, criterion, score),
            )
        return self._answers(reader, reading_id)

    def rank(
        self, reader: Reader, reading_id: str, version: int, ranking: Sequence[int | None]
    ) -> Answers:
        """Store the ranking, slot by slot; None where a place is still open."""
        places = [place for place in ranking if place is not None]
        with self._change(reader, reading_id, version, {"ranking": list(ranking)}) as (
            connection,
            record,
        ):
            allowed = set(range(1, len(record.images) + 1))
            if len(ranking) != len(record.images) or not set(places) <= allowed:
                raise ValueError("a ranking gives every method one of the places")
            if len(set(places)) != len(places):
                raise ValueError("a ranking gives no place twice")
            connection.execute(
                "UPDATE readings SET ranking = ? WHERE reading_id = ?",
                (json.dumps(list(ranking)), reading_id),
            )
        return self._answers(reader, reading_id)

    def comment(self, reader: Reader, reading_id: str, version: int, text: str) -> Answers:
        """Store the comment."""
        with self._change(reader, reading_id, version, {"comment": text}) as (connection, _):
            connection.execute(
                "UPDATE readings SET comment = ? WHERE reading_id = ?", (text, reading_id)
            )
        return self._answers(reader, reading_id)

    @contextmanager
    def _change(
        self, reader: Reader, reading_id: str, version: int, change: dict[str, Any]
    ) -> Iterator[tuple[sqlite3.Connection, ReadingRecord]]:
        """Check who, what and which version; then change, count up and log in one go."""
        with self._transaction() as connection:
            _refuse_when_finished(connection, reader)
            record = _reading(connection, reader, reading_id)
            if record is None:
                raise KeyError(reading_id)
            if record.answers.version != version:
                raise StaleVersionError
            yield connection, record
            connection.execute(
                "UPDATE readings SET version = version + 1 WHERE reading_id = ?", (reading_id,)
            )
            _log(connection, reader, reading_id, version + 1, change)

    def _answers(self, reader: Reader, reading_id: str) -> Answers:
        record = self.reading(reader, reading_id)
        assert record is not None
        return record.answers

    def finish(self, reader: Reader) -> None:
        """Close the reader's answers for good; refuse while any is missing."""
        with self._transaction() as connection:
            _refuse_when_finished(connection, reader)
            ids = connection.execute(
                "SELECT reading_id FROM readings WHERE reader_id = ?", (reader.reader_id,)
            ).fetchall()
            records = [_reading(connection, reader, i) for (i,) in ids]
            if not all(record and record.answers.is_complete for record in records):
                raise IncompleteError
            connection.execute(
                "UPDATE readers SET finished_at = ? WHERE reader_id = ?",
                (_now(), reader.reader_id),
            )
            _log(connection, reader, None, None, {"finished": True})

    def events(self) -> list[tuple[str, str | None, dict[str, Any]]]:
        """Return every change that was ever made: reader, reading, change."""
        rows = self._rows(
            "SELECT name, reading_id, change FROM events JOIN readers USING (reader_id)"
            " ORDER BY event_id"
        )
        return [(name, reading_id, json.loads(change)) for name, reading_id, change in rows]


def _reading(
    connection: sqlite3.Connection, reader: Reader, reading_id: str
) -> ReadingRecord | None:
    row = connection.execute(
        "SELECT position, case_id, is_repeat, version, ranking, comment FROM readings"
        " WHERE reading_id = ? AND reader_id = ?",
        (reading_id, reader.reader_id),
    ).fetchone()
    if row is None:
        return None
    position, case_id, is_repeat, version, ranking, comment = row
    slots = connection.execute(
        "SELECT image, image_id FROM slots WHERE reading_id = ? ORDER BY slot", (reading_id,)
    ).fetchall()
    ratings: list[dict[str, int | None]] = [dict.fromkeys(CRITERION_NAMES) for _ in slots]
    for slot, criterion, score in connection.execute(
        "SELECT slot, criterion, score FROM ratings WHERE reading_id = ?", (reading_id,)
    ):
        ratings[slot][criterion] = score
    answers = Answers(version, tuple(ratings), tuple(json.loads(ranking)), comment)
    images, image_ids = zip(*slots, strict=True)
    return ReadingRecord(reading_id, position, case_id, bool(is_repeat), images, image_ids, answers)


def _refuse_when_finished(connection: sqlite3.Connection, reader: Reader) -> None:
    (finished_at,) = connection.execute(
        "SELECT finished_at FROM readers WHERE reader_id = ?", (reader.reader_id,)
    ).fetchone()
    if finished_at is not None:
        raise FinishedError


def _log(
    connection: sqlite3.Connection,
    reader: Reader,
    reading_id: str | None,
    version: int | None,
    change: dict[str, Any],
) -> None:
    connection.execute(
        "INSERT INTO events (at, reader_id, reading_id, version, change) VALUES (?, ?, ?, ?, ?)",
        (_now(), reader.reader_id, reading_id, version, json.dumps(change)),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
