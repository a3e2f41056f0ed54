"""What counts as coronary calcium: the threshold, the density weights, the vessels, the grades.

Agatston et al. (J Am Coll Cardiol 15:827, 1990) call calcium what reaches 130 HU, and
weight it 1 to 4 by its peak density. Risk grades follow the usual clinical categories; each
includes its upper edge, so that no score falls between two grades.
"""

from bisect import bisect_left, bisect_right
from enum import IntEnum

CALCIUM_THRESHOLD_HU = 130.0
WEIGHT_STEPS_HU = (200.0, 300.0, 400.0)  # each one reached adds 1 to the weight
REFERENCE_SPACING_MM = 3.0  # the slices on which the score was defined
AIR_HU = -1024

GRADES = ("none", "minimal", "mild", "moderate", "severe")
GRADE_EDGES = (0.0, 10.0, 100.0, 400.0)  # each edge belongs to the grade below it


class Vessel(IntEnum):
    """Labels of calcium in a mask. A binary mask is all ``UNSPECIFIED`` when read."""

    LAD = 1
    LCX = 2
    RCA = 3
    LM = 4
    UNSPECIFIED = 5


def density_weight(peak_hu: float) -> int:
    """Return the density factor, 1 to 4, of a lesion with this peak.

    >>> [density_weight(hu) for hu in (130, 199.9, 200, 300, 400, 1500)]
    [1, 1, 2, 3, 4, 4]
    """
    return 1 + bisect_right(WEIGHT_STEPS_HU, peak_hu)


def grade(agatston: float) -> str:
    """Return the risk grade: 0 | (0, 10] | (10, 100] | (100, 400] | > 400.

    >>> [grade(score) for score in (0, 0.5, 10, 10.5, 100, 400, 400.1)]
    ['none', 'minimal', 'minimal', 'mild', 'mild', 'moderate', 'severe']
    """
    return GRADES[bisect_left(GRADE_EDGES, agatston)]
