"""The Brownian bridge between a still image and its moving twin.

Notation, used in this package only:

    x0   still image, where the bridge starts        T    number of steps
    y    moving image, where the bridge ends         t    a step, 0 <= t <= T
    xt   the image at step t:  xt = (1 - a) x0 + a y + sqrt(d) eps
         with  a = t / T,  d = m a (1 - a)  and  eps ~ N(0, 1) in every pixel
    m    noise scale: 2 in the paper, whose d peaks at 0.5 (a deviation of 707 HU)

The noise vanishes at both ends, so x_0 is exactly still and x_T is exactly y.

Walking back from t to an earlier step s needs q(xs | xt, x0, y). In Bayes' rule,
q(xs | xt, x0, y) ~ q(xt | xs, y) q(xs | x0, y), every y cancels and a second,
shorter bridge is left, pinned at x0 and xt:

    mean = x0 + (s / t) (xt - x0)        variance = m s (t - s) / (t T)

Both are finite at t = T, so the schedule needs no clipped end point. The coefficients that
the paper prints for the same step are wrong; docs/model.md says how.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from prodm.errors import ProdmError


@dataclass(frozen=True)
class BrownianBridge:
    """A bridge of ``num_steps`` equal steps. It holds no tensors, hence no device.

    >>> import torch
    >>> BrownianBridge(num_steps=4).variance(torch.arange(5)).tolist()
    [0.0, 0.375, 0.5, 0.375, 0.0]
    """

    num_steps: int = 1000
    noise_scale: float = 2.0

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ProdmError(f"num_steps of the bridge must be at least 1, got {self.num_steps}")
        if not 0 <= self.noise_scale < float("inf"):
            raise ProdmError(
                f"noise_scale of the bridge must be 0 or positive, got {self.noise_scale}"
            )

    def variance(self, t: Tensor) -> Tensor:
        """Variance d of the noise in xt, of the same shape as ``t``."""
        a = t / self.num_steps
        return self.noise_scale * a * (1 - a)

    def diffuse(self, x0: Tensor, y: Tensor, t: Tensor, eps: Tensor) -> Tensor:
        """Return xt [B, C, ...]. Training draws one step per image, so ``t`` is [B]."""
        t = t.reshape(-1, *[1] * (x0.ndim - 1))
        a = t / self.num_steps
        return (1 - a) * x0 + a * y + self.variance(t).sqrt() * eps

    def posterior(self, xt: Tensor, x0: Tensor, t: int, s: int) -> tuple[Tensor, float]:
        """Return mean [B, C, ...] and variance of xs given xt and x0, for s < t.

        Sampling moves the whole batch in step, so ``t`` and ``s`` are plain ints.
        """
        if not 0 <= s < t <= self.num_steps:
            raise ProdmError(f"need 0 <= s < t <= {self.num_steps}, got s={s}, t={t}")
        mean = x0 + (s / t) * (xt - x0)
        return mean, self.noise_scale * s * (t - s) / (t * self.num_steps)

    def descent(self, num_jumps: int, crowding: float = 1.0) -> tuple[int, ...]:
        """Steps from T down to 0 in ``num_jumps`` jumps.

        A ``crowding`` of 1 makes them nearly equal; with larger ones t falls like the power
        (k / num_jumps) ** crowding, so that more of the calls happen near t = 0.

        >>> BrownianBridge(num_steps=1000).descent(num_jumps=4)
        (1000, 750, 500, 250, 0)
        >>> BrownianBridge(num_steps=1000).descent(num_jumps=4, crowding=3.0)
        (1000, 422, 125, 16, 0)
        """
        if not 1 <= num_jumps <= self.num_steps:
            raise ProdmError(f"the number of jumps must be 1 to {self.num_steps}, got {num_jumps}")
        if not crowding >= 1:
            raise ProdmError(f"crowding must be at least 1, got {crowding}")
        rising = [0]
        for k in range(1, num_jumps + 1):
            # Rounding must not make two steps fall together.
            rising.append(max(rising[-1] + 1, round(self.num_steps * (k / num_jumps) ** crowding)))
        return tuple(reversed(rising))

    def checked_descent(self, steps: Sequence[int]) -> tuple[int, ...]:
        """Return an explicit list of steps, refused unless it falls from T to 0."""
        falls = all(t > s for t, s in pairwise(steps))
        if len(steps) < 2 or steps[0] != self.num_steps or steps[-1] != 0 or not falls:
            raise ProdmError(
                f"the steps of the walk must fall from {self.num_steps} to 0, got {list(steps)}"
            )
        return tuple(steps)
