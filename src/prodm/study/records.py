"""Readers, their readings and answers, as the store keeps them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reader:
    """A person who reads the study."""

    reader_id: int
    name: str
    token: str
    finished_at: str | None


@dataclass(frozen=True)
class Answers:
    """All that was answered in one reading; None where nothing was yet."""

    version: int
    ratings: tuple[dict[str, int | None], ...]  # slot by slot, criterion by name
    ranking: tuple[int | None, ...]  # slot by slot, 1 is best
    comment: str

    @property
    def is_complete(self) -> bool:
        """Whether every rating is given and the ranking names every place once."""
        rated = all(score is not None for slot in self.ratings for score in slot.values())
        places = {place for place in self.ranking if place is not None}
        return rated and places == set(range(1, len(self.ranking) + 1))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was answered."""
        rated = any(score is not None for slot in self.ratings for score in slot.values())
        return not (rated or any(self.ranking) or self.comment)


@dataclass(frozen=True)
class ReadingRecord:
    """A reading with its answers, as stored."""

    reading_id: str
    position: int
    case_id: str
    is_repeat: bool
    images: tuple[str, ...]
    image_ids: tuple[str, ...]
    answers: Answers
