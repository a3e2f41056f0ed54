"""What readers rate, in the words of the paper's Likert table.

Every criterion goes from 1 (lowest quality) to 5 (highest).
"""

from dataclasses import dataclass

SCORES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Criterion:
    """One question, asked of every method in every case."""

    name: str  # as stored
    title: str  # as shown
    definitions: tuple[str, str, str, str, str]  # of the scores 1 to 5


CRITERIA = (
    Criterion(
        "motion_suppression",
        "Motion suppression",
        (
            "Severe motion artifacts",
            "Moderate motion artifacts",
            "Some motion artifacts remain but mostly clean",
            "Minor motion artifacts",
            "No visible motion artifacts",
        ),
    ),
    Criterion(
        "clinical_usability",
        "Clinical usability",
        (
            "Not suitable for clinical use with major artifacts or distortions",
            "Limited clinical usability with significant quality issues",
            "Good for clinical use with minor limitations",
            "High clinical usability with only minor quality issues",
            "Optimal for clinical use with no quality concerns",
        ),
    ),
    Criterion(
        "vessel_fidelity",
        "Vessel fidelity",
        (
            "Severe distortion or loss of vessel structures and calcium",
            "Moderate distortion with some vessel detail lost",
            "Minor distortion, most vessel detail preserved",
            "Minimal distortion with excellent vessel detail preservation",
            "Perfect preservation of vessel structures and calcium",
        ),
    ),
)
CRITERION_NAMES = tuple(criterion.name for criterion in CRITERIA)
CRITERION_TITLES = {criterion.name: criterion.title for criterion in CRITERIA}
