"""The learned correction: a bridge, a network, losses, a sampler, and the methods compared.

Networks see images in [0, 1], which stand for -200 to 800 HU; scores and calcium losses are
in HU. The two functions here are the only way between the two scales. They take and return
arrays of numpy or torch alike, and this package itself imports neither torch nor MONAI.
"""

from typing import Any

LOW_HU = -200.0
HIGH_HU = 800.0


def normalise(hu: Any) -> Any:  # noqa: ANN401 (an array of any library)
    """Return HU clipped to [-200, 800] as values in [0, 1].

    >>> import numpy as np
    >>> normalise(np.array([-1000.0, 300.0, 3000.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return (hu.clip(LOW_HU, HIGH_HU) - LOW_HU) / (HIGH_HU - LOW_HU)


def to_hu(image: Any) -> Any:  # noqa: ANN401
    """Return the HU of an image in [0, 1]. Nothing is clipped, so that gradients pass."""
    return image * (HIGH_HU - LOW_HU) + LOW_HU
