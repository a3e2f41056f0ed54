"""Walking back is reproducible and honest about its calls; windows slide over whole blocks."""

import dataclasses

import pytest
import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model.bridge import BrownianBridge
from prodm.model.sampler import (
    SamplingSettings,
    correct_blocks,
    may_hold_calcium,
    slice_windows,
    walk,
)

BRIDGE = BrownianBridge(num_steps=1000, noise_scale=0.2)
Y = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def fade(xt: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """A denoiser that depends on all it is given."""
    return 0.5 * y + 0.3 * xt - 1e-4 * t.reshape(-1, 1, 1, 1)


def walked(seed: int | None, num_jumps: int = 5) -> Tensor:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return walk(BRIDGE, fade, Y, BRIDGE.descent(num_jumps), generator=generator)


def test_a_walk_repeats_with_its_seed_and_only_with_it() -> None:
    assert torch.equal(walked(0), walked(0))
    assert not torch.equal(walked(0), walked(1))


def test_a_walk_without_fresh_noise_needs_no_seed_and_touches_no_global_one() -> None:
    before = torch.random.get_rng_state()
    assert torch.equal(walked(None), walked(None))
    walked(0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_one_jump_is_one_estimate_from_y() -> None:
    expected = fade(Y, Y, torch.full((2,), 1000))
    assert torch.equal(walked(None, num_jumps=1), expected)
    assert torch.equal(walked(7, num_jumps=1), expected)


def test_without_noise_the_walk_is_the_recursion_written_out() -> None:
    x, steps = Y, (1000, 300, 20, 0)
    for t, s in ((1000, 300), (300, 20), (20, 0)):
        x0 = fade(x, Y, torch.full((2,), t))
        x = (1 - s / t) * x0 + (s / t) * x
    torch.testing.assert_close(walk(BRIDGE, fade, Y, steps, generator=None), x)


def test_the_hook_changes_every_estimate() -> None:
    seen: list[Tensor] = []

    def between(estimate: Tensor) -> Tensor:
        seen.append(estimate)
        return torch.full_like(estimate, 0.25)

    end = walk(BRIDGE, fade, Y, BRIDGE.descent(4), generator=None, between=between)
    assert len(seen) == 4
    assert torch.equal(end, torch.full_like(Y, 0.25))


def test_no_gradients_are_kept() -> None:
    weight = torch.ones((), requires_grad=True)
    end = walk(BRIDGE, lambda xt, y, t: weight * y, Y, (1000, 0), generator=None)
    assert not end.requires_grad


def test_steps_come_from_the_settings_unless_a_number_is_asked_for() -> None:
    settings = SamplingSettings(num_jumps=4, crowding=2.0)
    assert settings.descent(BRIDGE) == BRIDGE.descent(4, 2.0)
    assert settings.descent(BRIDGE, 2) == BRIDGE.descent(2, 2.0)
    explicit = dataclasses.replace(settings, steps=(1000, 10, 0))
    assert explicit.descent(BRIDGE) == (1000, 10, 0)
    assert explicit.descent(BRIDGE, 1) == (1000, 0)
    with pytest.raises(ProdmError, match="must fall from 1000 to 0"):
        dataclasses.replace(settings, steps=(500, 0)).descent(BRIDGE)


@pytest.mark.parametrize("num_slices", [1, 3, 5, 7, 9])
def test_windows_hold_their_slice_in_the_middle(num_slices: int) -> None:
    blocks = torch.rand(2, 4, 3, 5)
    windows = slice_windows(blocks, num_slices)
    assert windows.shape == (8, num_slices, 3, 5)
    assert torch.equal(windows[:, num_slices // 2].reshape(blocks.shape), blocks)


def test_blocks_are_continued_by_their_end_slices() -> None:
    blocks = torch.arange(4.0).reshape(1, 4, 1, 1)
    windows = slice_windows(blocks, 5).flatten(1)
    assert windows[0].tolist() == [0, 0, 0, 1, 2]
    assert windows[3].tolist() == [1, 2, 3, 3, 3]


@pytest.mark.parametrize("max_windows", [1, 5, 100])
def test_all_windows_of_all_blocks_are_corrected_together(max_windows: int) -> None:
    blocks = torch.rand(3, 4, 6, 6)
    sizes = []

    def mean_of_window(windows: Tensor) -> Tensor:
        sizes.append(len(windows))
        return windows.mean(dim=1, keepdim=True).expand_as(windows)

    corrected = correct_blocks(mean_of_window, blocks, num_slices=3, max_windows=max_windows)
    assert sum(sizes) == 12
    assert max(sizes) == min(max_windows, 12)
    assert corrected.shape == blocks.shape
    torch.testing.assert_close(corrected[:, 1], blocks[:, :3].mean(dim=1))
    torch.testing.assert_close(corrected[:, 0], (2 * blocks[:, 0] + blocks[:, 1]) / 3)


def test_slices_on_which_nothing_stands_out_are_left_alone() -> None:
    blocks = torch.full((2, 4, 16, 16), (40.0 + 200) / 1000)
    blocks[0, 1, 4:7, 4:7] = (81.0 + 200) / 1000
    blocks[1, 3, 8, 8] = 1.0  # one pixel: a mean of 124 HU
    blocks[1, 0, 8, 8] = (300.0 + 200) / 1000  # one pixel of noise: a mean of 69 HU
    wanted = may_hold_calcium(blocks).reshape(2, 4)
    assert wanted.nonzero().tolist() == [[0, 1], [1, 3]]
    corrected = correct_blocks(torch.zeros_like, blocks, num_slices=3)
    changed = (corrected != blocks).any(dim=(2, 3))
    assert torch.equal(changed, wanted)


def test_even_windows_are_refused() -> None:
    with pytest.raises(ProdmError, match="odd number of slices, got 4"):
        slice_windows(torch.zeros(1, 4, 2, 2), 4)
