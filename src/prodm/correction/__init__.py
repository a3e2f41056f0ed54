"""Correction of whole scans in memory: a Volume and a region in, a corrected one and scores out.

    from prodm.correction import correct, load_corrector
    corrected = correct(volume, region, load_corrector(weights))
    corrected.volume, corrected.after.agatston, corrected.spread.interval_90

Reading and writing scans is the command line's affair. Importing this package loads no torch.
"""

from prodm.correction.correct import Corrected, Roi, correct
from prodm.correction.correctors import Corrector, Identity, NetworkCorrector
from prodm.correction.loading import load_corrector, make_corrector

__all__ = [
    "Corrected",
    "Corrector",
    "Identity",
    "NetworkCorrector",
    "Roi",
    "correct",
    "load_corrector",
    "make_corrector",
]
