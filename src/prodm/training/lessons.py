"""What is learnt from things that were made and kept beforehand (``prodm.training.kept``)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prodm.model.losses import Batch
from prodm.training.findings import (
    Finding,
    draw_closer,
    draw_closer_finding,
    draw_finding,
    draw_findings,
    draw_places,
)
from prodm.training.kept import Make


@dataclass(frozen=True)
class Lesson:
    """One kind of thing, how it is made, and how batches are drawn from many."""

    kind: type[Any]
    make: Make
    draw: Callable[..., Batch]


LESSONS: dict[str, Lesson] = {
    "focuser": Lesson(Finding, draw_finding, draw_findings),
    "placer": Lesson(Finding, draw_finding, draw_places),
    "polisher": Lesson(Finding, draw_closer_finding, draw_closer),
}
