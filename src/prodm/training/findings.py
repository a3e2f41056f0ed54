"""What a focuser, a placer and a polisher learn from: training blocks whose motion was found.

Each block is moved afresh, as training windows are. Its motion is then found as a correction of
that block alone would find it, by a separator, a reader and the search. The blocks of a scan find
it better together (``prodm.model.finding``), and then all of them are looked at, also those in
which nothing seems to move: so with ``motions = "near"`` it is the true one with an error of the
size that they leave (``nearly``). Either takes far longer than learning from it, so that what was
found is kept, one file for each:

    views       [5, Z, Y, X]  what a focuser sees (``prodm.model.focusing``), in HU, and odds in
                              thousandths; or a polisher (``prodm.model.polishing``), in HU
    lesion      [Z, Y, X]     the lesion that a placer is shown, in HU: what a focuser saw, where
                              there is one, else what was refocused
    clean       [Z, Y, X]     the image without that lesion as it moves, in HU
    still       [Z, Y, X]     the true calcium over its background, in HU
    background  [Z, Y, X]     in HU
    spacing_mm  [3]
    place       [2]           rows and columns that the lesion rests from where the motion puts it

``still`` and ``background`` are in the frame of the motion that was found, whose place may be
wrong: what it puts in focus is compared with the truth, the motion is given the nearest place that
is a whole number of pixels off, and the truth is cut out as many pixels off. Only slices with
calcium are kept, and one more on either side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from prodm.calcium import CALCIUM_THRESHOLD_HU
from prodm.errors import ProdmError
from prodm.model import HIGH_HU, LOW_HU
from prodm.model.families import draw_motions
from prodm.model.focusing import GRAIN_HU, REFOCUSED, VIEWS, focus, look_again
from prodm.model.losses import Batch, lesion_neighbourhoods
from prodm.model.motions import PADDING, FoundMotion, place, put_back, without_grain
from prodm.model.phasing import (
    STILL_HU,
    Separator,
    find_motion,
    separate_by_network,
)
from prodm.model.placing import place_of
from prodm.model.polishing import SUSPECT_HU, WEIGHED, look_closer
from prodm.model.reading import angles_rad, without_translation
from prodm.model.resting import NUM_PLACED, clean, look_around
from prodm.model.search import SearchSettings
from prodm.pairs.blocks import BLOCK_SHAPE, MARGIN
from prodm.training.windows import Block, WindowSettings, drawn_motion, mirror, until_made

LEAST_BORDER_PX = 4  # of a stored block's margin that is left on each side when a block is cut
MOST_OFF_PX = 16
MOST_AWAY_PX = 9  # that a lesion and what is left of it are put from where they were
ODDS_UNIT = 1e-3
CARRIED_PX = 6.0  # how far around
TYPICAL_ERROR_PX = 0.3  # of s up to a translation: the median of what the blocks of a scan find,
ERROR_SPREAD = 0.8  # and the standard deviation of its logarithm
PLACE_ERROR_PX = 1.5  # standard deviation of the place, along x and along y
MOST_SPACING_RATIO = 0.2  # of blocks whose calcium may be swapped, as a logarithm
BRIGHTER = 0.3  # standard deviation of the logarithm of how bright swapped calcium is


@dataclass(frozen=True, eq=False)
class Finding:
    """What was found in one block; images are int16."""

    views: NDArray[np.int16]
    lesion: NDArray[np.int16]
    clean: NDArray[np.int16]
    still: NDArray[np.int16]
    background: NDArray[np.int16]
    spacing_mm: NDArray[np.float32]
    place: NDArray[np.int16]

    @property
    def slices(self) -> NDArray[np.intp]:
        """Slices to learn from: those with calcium, or with what was taken for it; or all."""
        bright = np.maximum(self.still, self.views[REFOCUSED]).max(axis=(1, 2))
        held = np.flatnonzero(bright > GRAIN_HU)
        return held if len(held) else np.arange(len(bright))


def draw_finding(
    blocks: Sequence[Block],
    separator: Separator,
    settings: WindowSettings,
    seed: Sequence[int],
    *,
    closer: bool = False,
) -> Finding:
    """Move blocks until a motion is found in one.

    In blocks without calcium none should be found, and it takes many of them until one is. So
    ``settings.calcium_share`` is kept among the findings, not among the blocks that are looked at.
    """

    def made(block: Block, rng: np.random.Generator) -> Finding | None:
        chosen: Block | None = block
        if settings.swapped_share and rng.random() < settings.swapped_share:
            chosen = swapped(block, blocks[int(rng.integers(len(blocks)))], rng)
        return None if chosen is None else find(chosen, separator, settings, rng, closer=closer)

    return until_made(blocks, settings, seed, made)


def draw_closer_finding(
    blocks: Sequence[Block], separator: Separator, settings: WindowSettings, seed: Sequence[int]
) -> Finding:
    """Move blocks until a motion is found in one, and look at it as a polisher does."""
    if separator.focuser is None:
        raise ProdmError("a polisher learns from what a focuser saw, and there is none")
    return draw_finding(blocks, separator, settings, seed, closer=True)


def swapped(block: Block, other: Block, rng: np.random.Generator) -> Block | None:
    """Return the tissue of another block with the calcium of this one, brighter or fainter.

    So few patients make many, for a network that does not ask where calcium belongs. A block
    without calcium stays as it is; None where the other's spacing differs too much, or where none
    of the calcium reaches the threshold.
    """
    if not len(block.calcium_slices):
        return block
    for ours, theirs in zip(block.row.spacing_mm, other.row.spacing_mm, strict=True):
        if abs(math.log(ours / theirs)) > MOST_SPACING_RATIO:
            return None
    mirrors = rng.random(3) < 0.5
    excess = mirror(block.still.astype(np.float32) - block.background, mirrors)
    brighter = math.exp(BRIGHTER * rng.standard_normal())
    still = np.rint(other.background + brighter * excess).astype(np.int16)
    calcium = mirror(block.calcium, mirrors) & (still >= CALCIUM_THRESHOLD_HU)
    return replace(other, still=still, calcium=calcium) if calcium.any() else None


def find(
    block: Block,
    separator: Separator,
    settings: WindowSettings,
    rng: np.random.Generator,
    *,
    closer: bool = False,
) -> Finding | None:
    """Move a block and find its motion, or one near it; None where none is found.

    The views are those of a focuser or, from ``closer``, those of a polisher.
    """
    mirrors = rng.random(3) < 0.5
    still, background = (
        torch.from_numpy(mirror(image, mirrors).astype(np.float32))
        for image in (block.still, block.background)
    )
    true = drawn_motion(block, settings, rng)
    calcium = still - background
    tissue = background
    if rng.random() < settings.carried_share:
        tissue = carried_along(background, calcium, true)
    moved = tissue + true.mover(calcium, PADDING).apply(calcium)
    margin = np.array(MARGIN[1:])
    y, x = rng.integers(LEAST_BORDER_PX, 2 * margin - LEAST_BORDER_PX + 1)

    def cut(image: torch.Tensor, off_px: tuple[int, int] = (0, 0)) -> torch.Tensor:
        padded = np.pad(image.numpy(), ((0, 0), *[(MOST_OFF_PX,) * 2] * 2), mode="edge")
        top, left = (n + MOST_OFF_PX + off for n, off in zip((y, x), off_px, strict=True))
        depth, height, width = BLOCK_SHAPE
        slices = slice(MARGIN[0], MARGIN[0] + depth)
        return torch.from_numpy(padded[slices, top : top + height, left : left + width].copy())

    seen = cut(moved)
    parts = separate_by_network(seen[None], separator)
    moving, odds = seen - parts.background_hu[0], parts.still_hu[0] / STILL_HU
    if settings.motions == "near":
        motion, whole = nearly(true, rng)
    else:
        generator = torch.Generator().manual_seed(0)  # a reader leaves nothing to draw
        found_motion = find_motion(
            moving, SearchSettings(), generator, parts.still_hu[0], separator
        )
        if found_motion is None or found_motion.is_rest:
            return None
        resting = cut(calcium) if calcium.any() else moving
        off = place_of(found_motion) - place_of(place(found_motion, moving, resting))
        whole = off.round()
        motion = found_motion.translated(*(whole - off).tolist())
    if float(whole.abs().max()) > MOST_OFF_PX:
        return None
    views = look_again(seen, moving, odds, motion)
    lesion, without_lesion = views[REFOCUSED], clean(seen, views[REFOCUSED], motion)
    if separator.focuser is not None:
        lesion = without_grain(focus(views, *separator.focuser))
        without_lesion = put_back(seen, moving, lesion, motion) - lesion
    views[VIEWS.index("odds")] /= ODDS_UNIT
    if closer:
        views = look_closer(seen, moving, motion, lesion)
    off_px = int(whole[1]), int(whole[0])
    found = Finding(
        views=_as_int16(views),
        lesion=_as_int16(lesion),
        clean=_as_int16(without_lesion),
        still=_as_int16(cut(calcium, off_px)),
        background=_as_int16(cut(background, off_px)),
        spacing_mm=np.array(block.row.spacing_mm, dtype=np.float32),
        place=np.array(off_px, dtype=np.int16),
    )
    return _trimmed(found)


def nearly(true: FoundMotion, rng: np.random.Generator) -> tuple[FoundMotion, torch.Tensor]:
    """Return a motion as wrong as the blocks of a scan leave it, and how far off it rests.

    What is added is a motion of the simulator made small, without its translation, and a whole
    number of pixels (x, y). Along z hardly anything is found.
    """
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    drawn = draw_motions(1, true.start_rad, generator)
    added = FoundMotion(drawn.shift(drawn.displacement())[0], true.start_rad)
    added = added.translated(*(-place_of(added)).tolist())
    size_px = without_translation(added.shift_at(angles_rad())).square().mean().sqrt()
    error_px = TYPICAL_ERROR_PX * math.exp(ERROR_SPREAD * rng.standard_normal())
    shift_px = true.shift_px + error_px / float(size_px) * added.shift_px
    along_z = None if true.slice_shift is None else float(rng.random()) * true.slice_shift
    off = torch.from_numpy(rng.normal(0, PLACE_ERROR_PX, 2)).float().round()
    return FoundMotion(shift_px, true.start_rad, along_z).translated(*off.tolist()), off


def carried_along(
    background: torch.Tensor, calcium: torch.Tensor, motion: FoundMotion
) -> torch.Tensor:
    """Return a background [Z, Y, X] whose tissue around the calcium moves with it."""
    if not calcium.any():
        return background
    spread = ndimage.gaussian_filter(
        (calcium > 0).numpy().astype(np.float32), (1, *[CARRIED_PX] * 2)
    )
    near = torch.from_numpy((2 * spread / spread.max()).clip(max=1))
    level = (near * background).sum() / near.sum()
    carried = near * (background - level)
    moved: torch.Tensor = motion.mover(carried, PADDING).apply(carried)
    return background - carried + moved


def _trimmed(found: Finding) -> Finding:
    """Leave out slices beyond the calcium and its neighbours."""
    slices = found.slices
    kept = slice(max(int(slices[0]) - 1, 0), int(slices[-1]) + 2)
    return replace(
        found,
        views=found.views[:, kept],
        lesion=found.lesion[kept],
        clean=found.clean[kept],
        still=found.still[kept],
        background=found.background[kept],
    )


def draw_findings(
    findings: Sequence[Finding],
    *,
    num_slices: int,
    batch_size: int,
    seed: Sequence[int],
    radius_pixels: int,
    closer: bool = False,
) -> Batch:
    """Draw one batch of windows around slices with calcium; the same seed gives the same batch."""
    images: dict[str, list[torch.Tensor]] = {}
    lesions, spacing_mm = [], []
    for n in range(batch_size):
        rng = np.random.default_rng([*seed, n])
        found = findings[int(rng.integers(len(findings)))]
        middle = int(rng.choice(found.slices))
        around = middle + np.arange(num_slices) - num_slices // 2
        mirrors = rng.random(3) < 0.5
        views = torch.from_numpy(mirror(found.views, mirrors).astype(np.float32))
        if not closer:
            views[VIEWS.index("odds")] *= ODDS_UNIT
        still, background = (
            mirror(image[middle, None], mirrors).astype(np.float32)
            for image in (found.still, found.background)
        )
        calcium = (still > 0) & (background + still >= CALCIUM_THRESHOLD_HU)
        sample = {
            "views": views[:, around.clip(0, views.shape[1] - 1)].flatten(0, 1),
            "still": _in_units(background + still),
            "background": _in_units(background),
            "calcium": torch.from_numpy(calcium),
        }
        for name, image in sample.items():
            images.setdefault(name, []).append(image)
        scored = calcium
        if closer:
            scored = (still > SUSPECT_HU[0]) | (
                views[WEIGHED, middle, None].numpy() > SUSPECT_HU[1]
            )
        lesions.append(torch.from_numpy(lesion_neighbourhoods(scored, radius_pixels)))
        spacing_mm.append(torch.from_numpy(found.spacing_mm))
    stacked = {name: torch.stack(values) for name, values in images.items()}
    return Batch(
        **stacked,
        moving=stacked["still"],
        lesions=torch.stack(lesions),
        spacing_mm=torch.stack(spacing_mm),
    )


def draw_closer(findings: Sequence[Finding], **options: Any) -> Batch:  # noqa: ANN401
    """Draw one batch for a polisher, as ``draw_findings`` does.

    Scores count near all calcium, also where it does not reach the threshold.
    """
    return draw_findings(findings, **options, closer=True)


def draw_places(
    findings: Sequence[Finding],
    *,
    num_slices: int,
    batch_size: int,
    seed: Sequence[int],
    radius_pixels: int,
) -> Batch:
    """Draw one batch of blocks; the same seed gives the same batch.

    What is left of a moving lesion is put anywhere, and so is the lesion that a placer is shown:
    neither must tell where it rests (``prodm.model.resting``).
    """
    samples: list[dict[str, torch.Tensor]] = []
    for n in range(batch_size):
        rng = np.random.default_rng([*seed, n])
        found = findings[int(rng.integers(len(findings)))]
        mirrors = rng.random(3) < 0.5
        lesion, clean_hu, still, background = (
            torch.from_numpy(mirror(image, mirrors).astype(np.float32))
            for image in (found.lesion, found.clean, found.still, found.background)
        )
        place = found.place * np.where(mirrors[:2], -1, 1)
        place = place[::-1] if mirrors[2] else place
        # The truth is in the frame of the motion; it rests so many pixels on.
        inside = _shifted(torch.ones_like(still), place)
        left_over = inside * (clean_hu - _shifted(background, place))
        elsewhere, shown = rng.integers(-MOST_AWAY_PX, MOST_AWAY_PX + 1, (2, 2))
        clean_hu = clean_hu - left_over + _shifted(left_over, elsewhere)
        lesion = _shifted(lesion, shown)
        taken_out, _ = (
            look_around(_shifted(still, place), lesion, 1)
            .reshape(NUM_PLACED, 2, *still.shape[1:])
            .unbind(dim=1)
        )
        samples.append(
            {
                "views": look_around(clean_hu, lesion, num_slices),
                "still": taken_out / (HIGH_HU - LOW_HU),
                "calcium": taken_out != 0,
                "spacing_mm": torch.from_numpy(found.spacing_mm),
                "place": torch.from_numpy(place - shown),
            }
        )
    stacked = {name: torch.stack([one[name] for one in samples]) for name in samples[0]}
    return Batch(**stacked, moving=stacked["still"], lesions=stacked["calcium"].int())


def _shifted(image: torch.Tensor, by_px: NDArray[np.integer[Any]]) -> torch.Tensor:
    """Return an image [..., Y, X] moved by rows and columns; nothing comes from beyond."""
    shifted = torch.zeros_like(image)
    kept = [slice(max(-px, 0), length - max(px, 0)) for px, length in _along(image, by_px)]
    there = [slice(max(px, 0), length - max(-px, 0)) for px, length in _along(image, by_px)]
    shifted[..., there[0], there[1]] = image[..., kept[0], kept[1]]
    return shifted


def _along(image: torch.Tensor, by_px: NDArray[np.integer[Any]]) -> list[tuple[int, int]]:
    return [*zip(by_px.tolist(), image.shape[-2:], strict=True)]


def _in_units(hu: NDArray[np.float32]) -> torch.Tensor:
    """Return HU as networks have it, but not clipped: dense calcium counts in full."""
    return torch.from_numpy((hu - LOW_HU) / (HIGH_HU - LOW_HU))


def _as_int16(image: torch.Tensor) -> NDArray[np.int16]:
    limits = np.iinfo(np.int16)
    rounded: NDArray[np.int16] = image.round().clamp(limits.min, limits.max).short().numpy()
    return rounded
