"""What a tuner learns from must be what is truly missing of the motion that it is shown."""

import numpy as np
import torch

from prodm.model.motions import FoundMotion
from prodm.model.tuning import ALONG_PX, shapes
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS
from prodm.training.scenes import Scene, draw_scenes

MIDDLE = 17  # the line through a point: of its own slice, of what moves


def scene(start_rad: float) -> Scene:
    """A round lesion that drifts, before no tissue at all."""
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    spot = 600 * torch.exp(-((x - 30) ** 2 + (y - 33) ** 2) / 8)
    still = torch.stack([share * spot for share in (0.1, 0.4, 1.0, 0.4, 0.1)])
    angles = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=start_rad)).float()
    time = torch.arange(NUM_VIEWS) / NUM_VIEWS
    shift_px = time * (6 * angles.cos() + 3 * angles.sin())
    moved = FoundMotion(shift_px, start_rad).apply(still).round().short().numpy()
    start = np.array([start_rad], dtype=np.float32)
    return Scene(moved, moved, shift_px.numpy(), start)


def test_the_lesion_lies_off_by_what_is_said_to_be_missing() -> None:
    """In every wedge, up to a translation, wherever the scan starts."""
    scenes = [scene(0.0), scene(np.pi / 3)]
    batch = draw_scenes(scenes, num_slices=3, batch_size=40, seed=(0, 1), radius_pixels=5)
    assert batch.views is not None
    assert batch.missing is not None
    assert batch.block is not None
    errors, sizes = [], []
    for block, missing in enumerate(batch.missing @ shapes()):
        brightest = batch.views[batch.block == block][0]
        seen_px = torch.tensor(ALONG_PX)[brightest[:, MIDDLE].argmax(dim=1)]
        errors.append(float((seen_px @ shapes() - missing).abs().max()))
        sizes.append(float(missing.abs().max()))
    assert float(np.median(sizes)) > 0.5
    assert float(np.median(errors)) < 0.4  # lines are looked at every half pixel


def test_batches_repeat_with_their_seed() -> None:
    first, again, other = (
        draw_scenes([scene(0.0)], num_slices=3, batch_size=3, seed=seed, radius_pixels=5).missing
        for seed in ((1, 2), (1, 2), (1, 3))
    )
    assert first is not None
    assert again is not None
    assert other is not None
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
