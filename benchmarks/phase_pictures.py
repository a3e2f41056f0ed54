"""Draws the two pictures of docs/phase.md from one phantom.

    python benchmarks/phase_pictures.py --output docs

docs/phase-plane.png: the Fourier plane of a moving lesion, cut into the wedges that the scanner
saw one after the other, and the partial-angle image of each. docs/phase-motion.png: a lesion
smeared by back-projection, the s(theta) that was applied and the one that the search found in
the image of what moves, and the lesion with the motion undone.
"""

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from prodm.anatomy.phantom import make_phantom
from prodm.model.motions import FoundMotion, place
from prodm.model.search import SearchSettings, search
from prodm.motion.profiles import draw
from prodm.pairs.blocks import cover, cut
from prodm.pairs.simulate import displacement_px, moving_excess, prepare
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS
from prodm.physics.wedges import partial_angle_images

PHANTOM_SEED = 7
PROFILES = ("translation-x-medium", "piecewise-y-medium", "jitter-medium")
NUM_WEDGES = 6
HU = (-150, 550)


def main() -> None:
    """Make one phantom, move its densest block three ways, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs"))
    folder = parser.parse_args().output
    phantom = make_phantom(PHANTOM_SEED)
    scan = prepare(phantom.still, phantom.calcium, np.random.default_rng(0))
    windows = cover(phantom.calcium > 0)
    peaks = [float(cut(phantom.still.hu * (phantom.calcium > 0), w).max()) for w in windows]
    window = windows[int(np.argmax(peaks))]
    still, behind = (cut(volume.hu, window) for volume in (phantom.still, scan.background))
    level = int(np.argmax((still - behind).max(axis=(1, 2))))
    spacing_mm = phantom.still.spacing_mm
    moved = []
    for profile in PROFILES:
        rng = np.random.default_rng(2)
        trajectory = draw(profile, rng, pixel_spacing_mm=spacing_mm[2], num_angles=720)
        (excess,) = moving_excess(scan, trajectory, [window])
        moved.append((profile, excess, displacement_px(trajectory, spacing_mm)))
    _draw_plane(moved[0][1][level], folder / "phase-plane.png")
    _draw_motions(still, behind, moved, level, folder / "phase-motion.png")


def _draw_plane(moving: NDArray[np.float32], path: Path) -> None:
    size = 129
    spectrum = np.fft.fftshift(np.abs(np.fft.fft2(moving, s=(size, size))))
    parts = partial_angle_images(moving[None], NUM_WEDGES)[0]
    figure, axes = plt.subplots(2, 4, figsize=(11, 5.9))
    _bare(axes[0, 0], "what moves", moving, HU)
    axes[0, 0].set_title("what moves")
    plane = axes[1, 0]
    plane.imshow(np.log1p(spectrum), cmap="gray", extent=(-1, 1, 1, -1))
    for edge in range(NUM_WEDGES):
        angle = np.pi * edge / NUM_WEDGES
        x, y = np.cos(angle), np.sin(angle)
        plane.plot([-x, x], [-y, y], color=plt.cm.viridis(edge / NUM_WEDGES), linewidth=2)
    plane.set_title("its Fourier plane, in wedges")
    plane.set_xlim(-1, 1)
    plane.set_ylim(1, -1)
    plane.axis("off")
    for n, part in enumerate(parts):
        cell = axes[n // 3, 1 + n % 3]
        _bare(cell, f"seen from {30 * n}° to {30 * n + 30}°", part, (-60, 140))
        cell.title.set_color(plt.cm.viridis(n / NUM_WEDGES * 0.9))
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _draw_motions(
    still: NDArray[np.float32],
    behind: NDArray[np.float32],
    moved: list[tuple[str, NDArray[np.float32], NDArray[np.float64]]],
    level: int,
    path: Path,
) -> None:
    figure, axes = plt.subplots(
        len(moved), 4, figsize=(11, 2.9 * len(moved)), width_ratios=[1, 2, 1, 1]
    )
    generator = torch.Generator().manual_seed(0)
    for row, (profile, excess, displacement) in zip(axes, moved, strict=True):
        moving = torch.from_numpy(excess)
        motion = search(moving, SearchSettings(start_rad=0.0), generator)[0]
        placed = place(motion, moving, torch.from_numpy(still - behind))
        angles = phase.view_angles_rad(len(displacement))
        true = phase.shift_of(displacement[:, :2], angles)
        _bare(row[0], f"{profile}, moved", behind[level] + excess[level], HU)
        _curves(row[1], angles, true, placed)
        restored = behind[level] + placed.refocus(moving)[level].numpy()
        _bare(row[2], "motion undone", restored, HU)
        _bare(row[3], "truth", still[level], HU)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _curves(
    axes: Axes, angles: NDArray[np.float64], true: NDArray[np.float64], found: FoundMotion
) -> None:
    axes.plot(np.rad2deg(angles), true, color="black", linewidth=2, label="applied")
    views_deg = np.rad2deg(phase.view_angles_rad(NUM_VIEWS))
    axes.plot(views_deg, found.shift_px, color="tab:orange", linestyle="--", label="found")
    axes.set_xlabel("view angle θ, degrees")
    axes.set_ylabel("s(θ), pixels")
    axes.legend(frameon=False)


def _bare(axes: Axes, title: str, image: NDArray[np.float32], hu: tuple[float, float]) -> None:
    axes.imshow(image, cmap="gray", vmin=hu[0], vmax=hu[1])
    axes.set_title(title, fontsize=9)
    axes.axis("off")


if __name__ == "__main__":
    main()
