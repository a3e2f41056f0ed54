"""The bridge must agree with Bayes' rule, and walking it backwards with its own marginals."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from prodm.errors import ProdmError
from prodm.model.bridge import BrownianBridge
from prodm.model.sampler import walk

T = 8  # a power of two, so that every fraction t / T is exact
X0, Y = 0.7, -1.1  # one pixel, still and moving
SCALES = [2.0, 0.04]
EARLIER_LATER = [(s, t) for t in range(1, T + 1) for s in range(t)]


def bridge(scale: float) -> BrownianBridge:
    return BrownianBridge(num_steps=T, noise_scale=scale)


def marginal(t: int, scale: float, num_steps: int = T) -> tuple[float, float]:
    """Mean and variance of xt given both ends, straight from the definition."""
    a = t / num_steps
    return (1 - a) * X0 + a * Y, scale * (a - a**2)


def test_noise_vanishes_at_both_ends() -> None:
    x0, y, eps = torch.randn(3, 2, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(bridge(2.0).diffuse(x0, y, torch.tensor([0, 0]), eps), x0)
    assert torch.equal(bridge(2.0).diffuse(x0, y, torch.tensor([T, T]), eps), y)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("num_spatial_axes", [2, 3])
def test_every_image_gets_its_own_step(num_spatial_axes: int, scale: float) -> None:
    shape = (T + 1, 1, *[4] * num_spatial_axes)
    x0, y, eps = torch.full(shape, X0), torch.full(shape, Y), torch.ones(shape)
    xt = bridge(scale).diffuse(x0, y, torch.arange(T + 1), eps)
    for t, image in enumerate(xt):
        mean, variance = marginal(t, scale)
        torch.testing.assert_close(image, torch.full_like(image, mean + variance**0.5))


def test_noise_of_the_paper_peaks_at_707_hu() -> None:
    deviation = BrownianBridge().variance(torch.tensor(500)).sqrt()
    assert float(deviation) * 1000 == pytest.approx(707, abs=0.5)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("s", "t"), [(s, t) for s, t in EARLIER_LATER if s > 0 and t < T])
def test_posterior_is_bayes_rule_on_a_grid(s: int, t: int, scale: float) -> None:
    mean_t, variance_t = marginal(t, scale)
    xt = mean_t + 0.7 * variance_t**0.5
    shrink = (1 - t / T) / (1 - s / T)  # xt = shrink * xs + (1 - shrink) * y + noise
    mean_s, variance_s = marginal(s, scale)
    step_variance = variance_t - shrink**2 * variance_s

    xs = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    log_prior = -((xs - mean_s) ** 2) / (2 * variance_s)
    log_likelihood = -((xt - shrink * xs - (1 - shrink) * Y) ** 2) / (2 * step_variance)
    density = torch.softmax(log_prior + log_likelihood, dim=0)
    expected_mean = float((density * xs).sum())
    expected_variance = float((density * (xs - expected_mean) ** 2).sum())

    mean, variance = bridge(scale).posterior(torch.tensor([xt]), torch.tensor([X0]), t=t, s=s)
    assert float(mean) == pytest.approx(expected_mean, abs=1e-6)
    assert variance == pytest.approx(expected_variance, abs=1e-6)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("num_jumps", [1, 3, T])
def test_walking_back_from_y_visits_the_forward_marginals(num_jumps: int, scale: float) -> None:
    mean, spread = torch.tensor([Y]), 0.0
    for t, s in pairwise(bridge(scale).descent(num_jumps)):
        mean, variance = bridge(scale).posterior(mean, torch.tensor([X0]), t=t, s=s)
        spread = (s / t) ** 2 * spread + variance  # law of total variance
        assert (float(mean), spread) == pytest.approx(marginal(s, scale), abs=1e-6)


@pytest.mark.parametrize("num_jumps", [1, 10, 1000])
@pytest.mark.parametrize("crowding", [1.0, 2.0])
def test_a_perfect_oracle_meets_the_marginals_in_any_number_of_jumps(
    num_jumps: int, crowding: float
) -> None:
    long = BrownianBridge(num_steps=1000, noise_scale=2.0)
    y = torch.full((20_000, 1), Y)
    visited = []

    def oracle(xt: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        mean, variance = marginal(int(t[0]), 2.0, num_steps=1000)
        error = (variance / len(xt)) ** 0.5  # of the mean of so many pixels
        assert float(xt.mean()) == pytest.approx(mean, abs=5 * error + 1e-5)
        assert float(xt.var()) == pytest.approx(variance, rel=0.06, abs=1e-6)
        visited.append(int(t[0]))
        return torch.full_like(xt, X0)

    steps = long.descent(num_jumps, crowding)
    end = walk(long, oracle, y, steps, generator=torch.Generator().manual_seed(0))
    assert torch.equal(end, torch.full_like(y, X0))
    assert visited == list(steps[:-1])


def test_the_coefficients_that_the_paper_prints_lose_the_image() -> None:
    """With a perfect oracle, the mean must end on x0; as printed it leaves for hundreds."""
    num_steps = 1000
    a = np.clip(np.arange(num_steps + 1) / num_steps, 0, 0.999)  # else 0 / 0 at t = T
    d = 2 * (a - a**2)
    printed = corrected = Y
    for t in range(num_steps, 0, -1):
        if d[t] == 0 or a[t] == a[t - 1]:
            continue
        shrink = (1 - a[t]) / (1 - a[t - 1])
        fresh = d[t] - d[t - 1] * shrink**2
        c_x = d[t - 1] / d[t] * shrink + fresh / d[t] * (1 - a[t - 1])
        c_y_printed = a[t] - a[t - 1] * shrink * d[t - 1] / d[t]
        c_y = a[t - 1] - a[t] * shrink * d[t - 1] / d[t]
        c_e = (1 - a[t - 1]) * fresh / d[t]
        printed = c_x * printed + c_y_printed * Y + c_e * (printed - X0)
        corrected = c_x * corrected + c_y * Y - c_e * (corrected - X0)
        assert (c_x, c_y, c_e) == pytest.approx((1, 0, 1 / t), abs=1e-9)
    assert abs(printed) > 100
    assert corrected == pytest.approx(X0, abs=1e-9)


def test_the_step_published_with_bbdm_is_the_same_jump() -> None:
    """Li et al. step with a mean around y and ratios of variances; all of it collapses."""
    long = BrownianBridge(num_steps=1000, noise_scale=2.0)
    xt = 0.4
    for t, s in pairwise(range(990, -1, -90)):
        (mean_t, d_t), (mean_s, d_s) = marginal(t, 2.0, 1000), marginal(s, 2.0, 1000)
        fresh = (d_t - d_s * ((1 - t / 1000) / (1 - s / 1000)) ** 2) * d_s / d_t
        published = mean_s + ((d_s - fresh) / d_t) ** 0.5 * (xt - mean_t)
        mean, variance = long.posterior(torch.tensor([xt]), torch.tensor([X0]), t=t, s=s)
        assert (float(mean), variance) == pytest.approx((published, fresh), abs=1e-6)


@pytest.mark.parametrize("crowding", [1.0, 1.5, 3.0, 8.0])
@pytest.mark.parametrize("num_jumps", [1, 2, 7, 999, 1000])
def test_a_descent_falls_from_end_to_end_in_the_jumps_asked_for(
    num_jumps: int, crowding: float
) -> None:
    long = BrownianBridge(num_steps=1000)
    steps = long.descent(num_jumps, crowding)
    assert len(steps) == num_jumps + 1
    assert long.checked_descent(steps) == steps


def test_crowding_moves_every_inner_step_towards_zero() -> None:
    uniform = BrownianBridge().descent(10)
    crowded = BrownianBridge().descent(10, crowding=2.0)
    assert uniform == tuple(range(1000, -1, -100))
    assert all(c < u for c, u in zip(crowded[1:-1], uniform[1:-1], strict=True))


@pytest.mark.parametrize(("t", "s"), [(3, 3), (2, 5), (T + 1, 0), (1, -1)])
def test_posterior_refuses_steps_out_of_order(t: int, s: int) -> None:
    with pytest.raises(ProdmError, match=f"got s={s}, t={t}"):
        bridge(2.0).posterior(torch.zeros(1), torch.zeros(1), t=t, s=s)


@pytest.mark.parametrize("steps", [[], [T], [T, 3], [5, 0], [T, 3, 3, 0], [T, 2, 4, 0]])
def test_a_list_of_steps_that_does_not_fall_from_end_to_end_is_refused(steps: list[int]) -> None:
    with pytest.raises(ProdmError, match="must fall from 8 to 0"):
        bridge(2.0).checked_descent(steps)


def test_impossible_bridges_are_refused() -> None:
    with pytest.raises(ProdmError, match="num_steps"):
        BrownianBridge(num_steps=0)
    with pytest.raises(ProdmError, match="noise_scale"):
        BrownianBridge(noise_scale=-1.0)
    with pytest.raises(ProdmError, match="noise_scale"):
        BrownianBridge(noise_scale=float("nan"))
    with pytest.raises(ProdmError, match="jumps must be 1 to 8, got 9"):
        bridge(2.0).descent(9)
    with pytest.raises(ProdmError, match="crowding"):
        bridge(2.0).descent(2, crowding=0.5)
