"""A motion that was applied must be found again, as far as an image can show it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from prodm.errors import ProdmError
from prodm.model import search as searching
from prodm.model.families import FAMILIES, PIECEWISE, Motions, draw_motions
from prodm.model.motions import FoundMotion
from prodm.model.reading import NUM_ANGLES, angles_rad, true_path, without_translation
from prodm.model.search import SearchSettings, search, search_together, unlike
from prodm.model.sharpness import Seen, dips, outside_price
from prodm.motion.profiles import PROFILES, draw
from prodm.motion.trajectory import Jitter, Motion, Oscillation, Piecewise, Translation
from prodm.physics import phase
from prodm.physics.fitting import NUM_VIEWS

SIZE = 64
MOTIONS: dict[type, Motion] = {
    Translation: Translation((8.0, -5.0, 0.6)),
    Oscillation: Oscillation((7.0, 2.0, -0.5), phase_rad=0.8),
    Piecewise: Piecewise((6.0, 3.0, 0.4), (-3.0, 7.0, 0.3), 0.35, 0.55),
    Jitter: Jitter(((4.0, 1.0, 0.3), (1.0, -3.0, 0.2), (2.0, 1.0, -0.2)), phase_rad=2.0),
}


def lesions() -> Tensor:
    """Two smooth lesions in two of six slices, well inside."""
    y, x = torch.meshgrid(torch.arange(SIZE) - 32.0, torch.arange(SIZE) - 32.0, indexing="ij")
    first = 500 * torch.exp(-(x**2 / 8 + (y - 1) ** 2 / 3))
    second = 300 * torch.exp(-((x - 8) ** 2 / 3 + (y + 6) ** 2 / 5))
    none = torch.zeros_like(first)
    return torch.stack([none, none, first, first / 2 + second, none, none])


def applied(motion: Motion, start_rad: float = 0.0) -> FoundMotion:
    """A motion of the simulator, in pixels and slices."""
    path = torch.from_numpy(motion.path(np.arange(NUM_VIEWS) / NUM_VIEWS)).float()
    theta = torch.from_numpy(phase.view_angles_rad(NUM_VIEWS, start_rad=start_rad)).float()
    shift = path[:, 0] * theta.cos() + path[:, 1] * theta.sin()
    return FoundMotion(shift, start_rad, path[:, 2])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def as_parameters(motion: Motion) -> Motions:
    """A motion of the simulator as the search writes it."""
    vectors, phase_rad, pause = torch.zeros(1, 5, 3), torch.zeros(1), torch.tensor([[1.0, 0.5]])
    match motion:
        case Translation():
            vectors[0, 0] = torch.tensor(motion.amplitude_xyz_mm)
        case Oscillation():
            vectors[0, 2] = torch.tensor(motion.amplitude_xyz_mm)
            phase_rad[0] = motion.phase_rad + np.pi / 2
        case Piecewise():
            vectors[0, :2] = torch.tensor([motion.first_xyz_mm, motion.second_xyz_mm])
            pause[0] = torch.tensor([motion.pause_start, motion.pause_end])
        case Jitter():
            vectors[0, 2:] = torch.tensor(motion.harmonics_xyz_mm)
            phase_rad[0] = motion.phase_rad
    family = torch.tensor([FAMILIES.index(motion.family)])
    return Motions(family, vectors, phase_rad, pause, torch.zeros(1))


@pytest.mark.parametrize("family", MOTIONS)
def test_the_families_move_as_the_simulator_does(family: type) -> None:
    motion = MOTIONS[family]
    true = motion.path(np.arange(NUM_VIEWS) / NUM_VIEWS)
    np.testing.assert_allclose(as_parameters(motion).displacement()[0], true, atol=1e-4)


def test_motions_are_drawn_as_the_simulator_draws_them() -> None:
    """Share, median and spread of the farthest displacement, family by family."""
    rng = np.random.default_rng(0)
    drawn = draw_motions(3000, 0.0, seeded())
    farthest = drawn.displacement().norm(dim=-1).amax(dim=-1).numpy()
    simulated: dict[str, list[float]] = {name: [] for name in FAMILIES}
    for _ in range(3000):
        motion = draw(PROFILES[rng.integers(len(PROFILES))], rng, pixel_spacing_mm=1.0).motion
        path = motion.path(np.arange(NUM_VIEWS) / NUM_VIEWS)[:, :2]
        simulated[motion.family].append(float(np.linalg.norm(path, axis=1).max()))
    for number, name in enumerate(FAMILIES):
        ours = farthest[drawn.family.numpy() == number]
        assert len(ours) == pytest.approx(len(simulated[name]), rel=0.15)
        for share in (0.1, 0.5, 0.9):
            true = float(np.quantile(simulated[name], share))
            assert float(np.quantile(ours, share)) == pytest.approx(true, rel=0.12)


def test_what_the_simulator_draws_costs_nothing() -> None:
    """Two moves of 15 pixels go 30 pixels far; a little of an amplitude is along z."""
    drawn = draw_motions(3000, 0.0, seeded())
    displacement = drawn.displacement()
    farthest = displacement.norm(dim=-1).amax(dim=-1)
    assert float(farthest[drawn.family == PIECEWISE].max()) > 25
    assert float(outside_price(drawn, displacement).max()) < 0.01


@pytest.mark.parametrize("family", MOTIONS)
@pytest.mark.parametrize("scale", [0.25, 3.0])
def test_amplitudes_that_the_simulator_does_not_draw_cost(family: type, scale: float) -> None:
    motion = as_parameters(MOTIONS[family])
    motion = Motions(
        motion.family, scale * motion.vectors, motion.phase_rad, motion.pause, motion.start_rad
    )
    assert float(outside_price(motion, motion.displacement())) > 0.02


@pytest.mark.parametrize("family", MOTIONS)
def test_a_motion_of_each_family_is_found(family: type) -> None:
    motion = applied(MOTIONS[family])
    moving = motion.apply(lesions())
    found = search(moving, SearchSettings(start_rad=0.0), seeded())[0]
    peak = float(lesions().max())
    assert float(moving.max()) < 0.75 * peak
    assert float(found.refocus(moving).max()) > 0.85 * peak


def test_a_drift_is_found_with_its_place() -> None:
    """It starts where the lesion rests, which only the family knows."""
    motion = applied(MOTIONS[Translation])
    moving = motion.apply(lesions())
    found = search(moving, SearchSettings(start_rad=0.0), seeded())[0]
    still = found.refocus(moving)
    assert float((still - lesions()).norm()) < 0.5 * float(lesions().norm())
    assert float((found.shift_px - motion.shift_px).abs().mean()) < 1.0
    assert found.slice_shift is not None
    assert motion.slice_shift is not None
    assert float((found.slice_shift - motion.slice_shift).abs().mean()) < 0.2


def test_a_motion_is_found_where_the_start_is_not_known() -> None:
    moving = applied(Translation((11.0, 6.0, 0.0)), start_rad=1.1).apply(lesions())
    found = search(moving, SearchSettings(num_draws=2000), seeded())[0]
    peak = float(lesions().max())
    assert float(moving.max()) < 0.75 * peak
    assert float(found.refocus(moving).max()) > 0.85 * peak


@pytest.mark.parametrize("family", MOTIONS)
def test_a_motion_is_found_from_a_path_that_is_roughly_right(family: type) -> None:
    motion = MOTIONS[family]
    displacement = torch.from_numpy(motion.path(np.arange(NUM_VIEWS) / NUM_VIEWS)).float()[None]
    path = true_path(displacement, torch.zeros(1))[0]
    moving = applied(motion).apply(lesions())
    read = path + 0.5 * torch.sin(torch.arange(path.shape[1]))
    found = search(moving, SearchSettings(num_draws=4), seeded(), read)[0]
    assert float(found.refocus(moving).max()) > 0.85 * float(lesions().max())


def test_what_is_far_from_what_was_read_costs_more() -> None:
    """Rest too, and a translation does not count, since no image shows it."""
    angles = angles_rad()
    moving = applied(MOTIONS[Translation]).apply(lesions())
    wave = torch.stack([4 * torch.sin(3 * angles), torch.zeros(NUM_ANGLES)])
    placed = wave + torch.stack([7 * angles.cos() - 3 * angles.sin(), torch.zeros(NUM_ANGLES)])
    few = SearchSettings(num_draws=8, num_tried=8, num_coarse_steps=1, num_steps=(1, 1))
    for path in (wave, placed):
        found = search(moving, few, seeded(), path)
        (rest,) = (one for one in found if one.is_rest)
        assert rest.cost == pytest.approx(-1 + 0.2 * 4 / np.sqrt(2), abs=0.02)
        assert [one.cost for one in found] == sorted(one.cost for one in found)


@pytest.mark.parametrize("family", MOTIONS)
def test_a_reader_that_is_wrong_leaves_the_motions_that_were_drawn(family: type) -> None:
    motion = MOTIONS[family]
    displacement = torch.from_numpy(motion.path(np.arange(NUM_VIEWS) / NUM_VIEWS)).float()[None]
    backwards = -2 * true_path(displacement, torch.zeros(1))[0]
    moving = applied(motion).apply(lesions())
    found = search(moving, SearchSettings(start_rad=0.0), seeded(), backwards)[0]
    assert float(found.refocus(moving).max()) > 0.85 * float(lesions().max())


def test_what_was_read_in_one_block_is_a_start_where_the_mean_is_wrong() -> None:
    true = applied(Oscillation((6.0, 4.0, 0.0), phase_rad=0.7))
    moving = true.apply(lesions())
    few = SearchSettings(
        num_draws=1, num_tried=1, num_coarse_steps=1, num_steps=(1, 1), start_rad=0.0
    )
    rest = torch.zeros(2, NUM_ANGLES)
    own = torch.stack([true.shift_at(angles_rad()), torch.zeros(NUM_ANGLES)])

    def error_px(own_paths: list[Tensor]) -> float:
        found = search_together([moving], few, seeded(), rest, own_paths=own_paths)
        moves = next(one for one in found if not one.is_rest)
        shape = without_translation(moves.shift_at(angles_rad()) - true.shift_at(angles_rad()))
        return float(shape.square().mean().sqrt())

    assert error_px([own]) < 0.5 < error_px([])


def test_still_lesions_stay() -> None:
    found = search(lesions(), SearchSettings(least_dips=0.0), seeded())[0]
    still = found.refocus(lesions())
    assert float(still.max()) == pytest.approx(float(lesions().max()), rel=0.1)
    assert float(((still > 130) != (lesions() > 130)).sum()) <= 0.2 * float((lesions() > 130).sum())


def test_what_has_no_dark_streaks_rests() -> None:
    """However much sharper some motion would make it: bone, say, that was taken for calcium."""
    blurred = torch.nn.functional.avg_pool2d(lesions(), 9, stride=1, padding=4)
    (rest,) = search(blurred, SearchSettings(num_draws=24), seeded())
    assert rest.is_rest
    assert len(search(blurred, SearchSettings(num_draws=24, least_dips=0.0), seeded())) > 1
    moving = applied(MOTIONS[Translation]).apply(lesions())
    assert dips(blurred) == 0
    assert dips(moving) > 0.025


def test_rest_is_always_an_option_and_costs_minus_one() -> None:
    still = SearchSettings(num_draws=12, num_steps=(1, 1), least_dips=0.0)
    motions = search(lesions(), still, seeded())
    assert [one.cost for one in motions] == sorted(one.cost for one in motions)
    rest = [one for one in motions if not one.shift_px.any()]
    assert [one.cost for one in rest] == [-1.0]


def test_the_same_seed_finds_the_same_motion() -> None:
    moving = applied(MOTIONS[Jitter]).apply(lesions())
    settings = SearchSettings(num_draws=24, num_tried=6, num_steps=(3, 2))
    first, again = (search(moving, settings, seeded(3))[0] for _ in range(2))
    assert torch.equal(first.shift_px, again.shift_px)


def test_nothing_at_all_rests() -> None:
    (rest,) = search(torch.zeros(3, 32, 32), SearchSettings(), seeded())
    assert not rest.shift_px.any()


def test_motions_can_be_picked() -> None:
    drawn = draw_motions(5, None, seeded())
    assert isinstance(drawn[[1, 3]], Motions)
    assert torch.equal(drawn[[1, 3]].displacement(), drawn.displacement()[[1, 3]])
    starts = draw_motions(400, None, seeded()).start_rad
    assert 120 < int((starts == 0).sum()) < 280
    assert float(starts.max()) > 6


def test_an_impossible_search_is_refused() -> None:
    with pytest.raises(ProdmError, match="at least one draw"):
        SearchSettings(num_draws=0)


def test_the_image_tells_the_motion_better_than_what_was_separated() -> None:
    """Dark streaks and faint ends are missing from what moves, but not from the image."""
    rng = np.random.default_rng(0)
    better = []
    for seed in range(4):
        drawn = draw("translation-x-medium", rng, pixel_spacing_mm=1.0).motion
        true = applied(drawn)
        moving = true.apply(lesions())
        seen = torch.where(moving.abs() > 25, moving, 0.0)
        noise = torch.randn(seen.shape, generator=seeded(seed))
        image = moving + 12 * noise
        shapes = [
            without_translation(found.shift_at(angles_rad()) - true.shift_at(angles_rad()))
            for found in (
                search_together([seen], SearchSettings(start_rad=0.0), seeded(seed))[0],
                search_together(
                    [seen], SearchSettings(start_rad=0.0), seeded(seed), images=[image]
                )[0],
            )
        ]
        alone, with_image = (float(shape.square().mean().sqrt()) for shape in shapes)
        better.append((alone, with_image))
    assert sum(pair[1] for pair in better) < 0.8 * sum(pair[0] for pair in better)


def test_motions_that_are_kept_are_unlike_each_other_and_cost_least() -> None:
    """Compared with a slow twin, pair by pair."""
    drawn = draw_motions(200, 0.3, seeded(1))
    costs = torch.rand(200, generator=seeded(2)) - (drawn.family == 1).float()  # these come first
    kept = unlike(drawn, costs, apart_px=(0.3, 1.0, 1.0, 1.0), count=25, most_of_family=9)
    shift = drawn.shift(drawn.displacement())
    shapes = [
        without_translation(FoundMotion(one, 0.3).shift_at(angles_rad())).numpy() for one in shift
    ]
    twin: list[int] = []
    for n in np.argsort(costs.numpy()):
        members = [m for m in twin if drawn.family[m] == drawn.family[n]]
        apart_px = 0.3 if int(drawn.family[n]) == 0 else 1.0
        near = [m for m in twin if np.sqrt(np.mean((shapes[m] - shapes[n]) ** 2)) < apart_px]
        if not near and len(members) < 9 and len(twin) < 25:
            twin.append(int(n))
    assert len(twin) == 25
    assert torch.equal(kept.vectors, drawn[twin].vectors)


def test_all_motions_are_kept_where_there_is_room() -> None:
    drawn = draw_motions(12, None, seeded(3))
    assert len(unlike(drawn, torch.zeros(12), apart_px=(0.0,) * 4, count=50).family) == 12


@pytest.mark.parametrize("family", MOTIONS)
def test_a_coarse_image_agrees_with_the_full_one_about_motions(family: type) -> None:
    """A pixel there is two: sizes of motions must not be mixed up."""
    true = as_parameters(MOTIONS[family])
    seen = Seen.of(applied(MOTIONS[family]).apply(lesions()), None)
    for scale in (0.5, 2.0):
        scaled = Motions(
            true.family, scale * true.vectors, true.phase_rad, true.pause, true.start_rad
        )
        for one in (seen, seen.coarser()):
            assert float(one.flat_costs(true)) < float(one.flat_costs(scaled)) - 0.02
            assert float(one.costs(true)) < float(one.costs(scaled)) - 0.05


def test_dense_calcium_that_hardly_moves_does_not_rest() -> None:
    """Sharpness alone cannot tell a motion of a quarter of a pixel; what it leaves behind can."""
    true = applied(Translation((1.2, 1.4, 0.0)))
    shape = without_translation(true.shift_at(angles_rad()))
    assert float(shape.square().mean().sqrt()) < 0.3
    still = 4 * lesions()
    moving = true.apply(still)
    image = moving + 10 * torch.randn(moving.shape, generator=seeded(4))
    path = torch.zeros(2, NUM_ANGLES)  # a reader that takes it to rest
    settings = SearchSettings(start_rad=0.0, num_draws=600, least_dips=0.0)
    assert search_together([moving], settings, seeded(), path)[0].is_rest
    found = search_together([moving], settings, seeded(), path, images=[image])[0]
    away = without_translation(found.shift_at(angles_rad())) - shape
    assert not found.is_rest
    assert float(away.square().mean().sqrt()) < 0.2


def test_motions_of_different_shapes_are_not_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of a right motion and a wrong one is wrong: one of the two is taken."""
    true = applied(MOTIONS[Oscillation])
    moving = true.apply(lesions())
    image = moving + 12 * torch.randn(moving.shape, generator=seeded(5))
    wrong = FoundMotion(-true.shift_px, 0.0, torch.zeros(NUM_VIEWS), cost=-5.0)

    def misled(*arguments: object) -> list[FoundMotion]:
        return [replace(wrong), *found_by(*arguments)]  # type: ignore[arg-type]

    found_by = searching._found
    monkeypatch.setattr(searching, "_found", misled)
    settings = SearchSettings(start_rad=0.0, num_draws=600)
    found = search_together([moving], settings, seeded(), images=[image])[0]
    away = without_translation(found.shift_at(angles_rad()) - true.shift_at(angles_rad()))
    assert float(away.square().mean().sqrt()) < 0.3
