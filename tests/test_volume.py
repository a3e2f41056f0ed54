"""A voxel keeps its place and its value, whatever happens to the array around it."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from prodm.errors import ProdmError
from prodm.volume import Direction, Grid, Vector, Volume

PLACES = settings(max_examples=40, deadline=None)


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """Grids of any spacing, origin and orientation, mirrored ones too."""
    shape = draw(st.tuples(*[st.integers(1, 6)] * 3))
    spacing = draw(st.tuples(*[st.floats(0.2, 8)] * 3))
    origin = draw(st.tuples(*[st.floats(-500, 500)] * 3))
    angles = draw(st.tuples(*[st.floats(-180, 180)] * 3))
    matrix = Rotation.from_euler("xyz", angles, degrees=True).as_matrix()
    if draw(st.booleans()):
        matrix[:, 0] *= -1
    return Grid(shape, spacing, origin, as_direction(matrix))


def as_direction(matrix: NDArray[np.float64]) -> Direction:
    rows = [(float(a), float(b), float(c)) for a, b, c in matrix]
    return rows[0], rows[1], rows[2]


def numbered(grid: Grid) -> Volume:
    return Volume(np.arange(np.prod(grid.shape), dtype=np.int16).reshape(grid.shape), grid)


def places(volume: Volume) -> dict[int, Vector]:
    """Position of each value; the values of ``numbered`` volumes are unique."""
    return {
        int(volume.hu[index]): volume.grid.position_xyz_mm(index)
        for index in np.ndindex(volume.shape)
    }


def check_nothing_moved(before: Volume, after: Volume) -> None:
    old, new = places(before), places(after)
    assert set(new) <= set(old)
    for value, position in new.items():
        np.testing.assert_allclose(position, old[value], atol=1e-6)


@given(grid=grids(), axis=st.integers(0, 2))
@PLACES
def test_flipping_moves_no_voxel(grid: Grid, axis: int) -> None:
    volume = numbered(grid)
    flipped = volume.flip(axis)
    check_nothing_moved(volume, flipped)
    np.testing.assert_array_equal(flipped.hu, np.flip(volume.hu, axis))
    np.testing.assert_array_equal(flipped.flip(axis).hu, volume.hu)
    assert grid.mismatch(flipped.flip(axis).grid) is None


@given(grid=grids(), axes=st.sampled_from(list(permutations(range(3)))))
@PLACES
def test_transposing_moves_no_voxel(grid: Grid, axes: tuple[int, int, int]) -> None:
    volume = numbered(grid)
    turned = volume.transpose(axes)
    check_nothing_moved(volume, turned)
    np.testing.assert_array_equal(turned.hu, volume.hu.transpose(axes))
    back = turned.transpose([axes.index(n) for n in range(3)])
    assert grid.mismatch(back.grid) is None


@given(grid=grids())
@PLACES
def test_to_lps_moves_no_voxel_and_points_to_left_back_head(grid: Grid) -> None:
    volume = numbered(grid)
    upright = volume.to_lps()
    check_nothing_moved(volume, upright)
    assert upright.hu.size == volume.hu.size
    matrix = np.asarray(upright.grid.direction)
    assert (np.diag(matrix) >= 0).all()
    best = max(np.abs(matrix[:, list(p)]).trace() for p in permutations(range(3)))
    assert np.abs(matrix).trace() == pytest.approx(best)
    again = upright.to_lps()
    assert again.grid == upright.grid


@given(grid=grids(), data=st.data())
@PLACES
def test_a_crop_keeps_places_and_pastes_back(grid: Grid, data: st.DataObject) -> None:
    volume = numbered(grid)
    bounds = []
    for length in grid.shape:
        start = data.draw(st.integers(0, length - 1))
        bounds.append(slice(start, data.draw(st.integers(start + 1, length))))
    block = volume.crop((bounds[0], bounds[1], bounds[2]))
    check_nothing_moved(volume, block)
    changed = volume.paste(block.with_hu(block.hu + np.int16(1000)))
    expected = volume.hu.copy()
    expected[tuple(bounds)] += 1000
    np.testing.assert_array_equal(changed.hu, expected)
    np.testing.assert_array_equal(volume.paste(block).hu, volume.hu)
    assert not np.shares_memory(block.hu, volume.hu)


@given(grid=grids(), index=st.tuples(*[st.floats(-20, 20)] * 3))
@PLACES
def test_index_and_position_undo_each_other(grid: Grid, index: tuple[float, float, float]) -> None:
    back = grid.index_zyx(grid.position_xyz_mm(index))
    np.testing.assert_allclose(back, index, atol=1e-6)


def test_a_position_by_hand() -> None:
    turned = Grid((2, 3, 4), (3.0, 0.5, 0.25), (10, 20, 30), ((0, -1, 0), (1, 0, 0), (0, 0, 1)))
    assert turned.position_xyz_mm((0, 0, 1)) == (10, 20.25, 30)  # a step along X goes to the back
    assert turned.position_xyz_mm((0, 1, 0)) == (9.5, 20, 30)  # a step along Y goes to the right
    assert turned.position_xyz_mm((1, 0, 0)) == (10, 20, 33)
    assert turned.voxel_volume_mm3 == 0.375


@given(grid=grids(), spacing=st.tuples(*[st.floats(0.2, 8)] * 3))
@PLACES
def test_resampling_covers_the_same_box(grid: Grid, spacing: tuple[float, float, float]) -> None:
    fine = grid.resample(spacing)
    edges = [([-0.5] * 3, [-0.5] * 3), ([n - 0.5 for n in grid.shape],
                                       [n - 0.5 for n in fine.shape])]  # fmt: skip
    for old, new in edges:
        np.testing.assert_allclose(grid.position_xyz_mm(old), fine.position_xyz_mm(new), atol=1e-6)


@given(grid=grids(), spacing=st.tuples(*[st.floats(0.2, 8)] * 3))
@PLACES
def test_a_constant_stays_constant_when_resampled(
    grid: Grid, spacing: tuple[float, float, float]
) -> None:
    volume = Volume(np.full(grid.shape, -77, np.int16), grid)
    np.testing.assert_allclose(volume.resample(spacing).hu, -77, rtol=1e-5)


@pytest.mark.parametrize("factor", [0.5, 2.0, 0.75])
def test_a_ramp_keeps_its_values_at_their_places(factor: float) -> None:
    grid = Grid((24, 24, 24), (3.0, 0.5, 0.5), (5.0, 6.0, 7.0))
    z, y, x = np.indices(grid.shape)
    volume = Volume((2 * z + 3 * y - x).astype(np.float32), grid)
    dz, dy, dx = grid.spacing_mm
    other = volume.resample((dz * factor, dy * factor, dx * factor))
    for index in ((6, 7, 5), (8, 9, 7)):
        k, j, i = grid.index_zyx(other.grid.position_xyz_mm(index))
        assert other.hu[index] == pytest.approx(2 * k + 3 * j - i, abs=1e-3)


def test_resampling_to_the_same_spacing_changes_nothing() -> None:
    volume = numbered(Grid((3, 4, 5), (3.0, 0.5, 0.5), (1, 2, 3)))
    same = volume.resample((3.0, 0.5, 0.5))
    np.testing.assert_array_equal(same.hu, volume.hu)
    assert volume.grid.mismatch(same.grid) is None


def test_halving_and_joining_gives_the_mean_back() -> None:
    volume = Volume(
        np.random.default_rng(0).normal(0, 100, (4, 16, 16)).astype(np.float32),
        Grid((4, 16, 16), (3.0, 0.5, 0.5)),
    )
    coarse = volume.resample((3.0, 1.0, 1.0))
    assert coarse.shape == (4, 8, 8)
    inner = coarse.hu[0, 1:-1, 1:-1].mean()
    assert inner == pytest.approx(volume.hu[0].mean(), abs=12)


GRID = Grid((3, 4, 5), (3.0, 0.5, 0.5), (1.0, 2.0, 3.0))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (((0, 4, 5), (1, 1, 1)), "at least one voxel"),
        (((3, 4), (1, 1, 1)), "three axes"),
        (((3, 4, 5), (1, 0, 1)), "spacing must be positive"),
        (((3, 4, 5), (1, float("nan"), 1)), "spacing must be positive"),
        (((3, 4, 5), (1, 1, 1), (0, 0, 0), ((1, 0, 0), (0, 1, 0), (0, 0.2, 1))), "right angles"),
    ],
)
def test_grids_that_cannot_be_are_refused(arguments: tuple[object, ...], sentence: str) -> None:
    with pytest.raises(ProdmError, match=sentence):
        Grid(*arguments)  # type: ignore[arg-type]


def test_volumes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ProdmError, match="but its grid is"):
        Volume(np.zeros((3, 4, 6), np.int16), GRID)
    with pytest.raises(ProdmError, match="int16 or float32, got float64"):
        Volume(np.zeros(GRID.shape), GRID)  # type: ignore[arg-type]
    with pytest.raises(ProdmError, match="takes every voxel"):
        numbered(GRID).crop((slice(None), slice(0, 4, 2), slice(None)))


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        (Grid((1, 2, 2), (3.0, 0.5, 0.5), (1.1, 2.0, 3.0)), "between the voxels"),
        (Grid((1, 2, 2), (3.0, 0.5, 0.5), (0.5, 2.0, 3.0)), "does not lie inside"),
        (Grid((1, 2, 2), (3.0, 0.5, 0.5), (3.0, 2.0, 3.0)), "does not lie inside"),
        (Grid((1, 2, 2), (3.0, 0.6, 0.5), (1.0, 2.0, 3.0)), "does not lie inside"),
        (GRID.crop((slice(1), slice(2), slice(2))).flip(0).flip(1), "does not lie inside"),
    ],
    ids=["between", "before", "beyond", "spacing", "flipped"],
)
def test_a_block_that_does_not_fit_is_not_pasted(block: Grid, sentence: str) -> None:
    with pytest.raises(ProdmError, match=sentence):
        numbered(GRID).paste(numbered(block))


def test_pasting_does_not_mix_types() -> None:
    block = Volume(np.zeros((1, 1, 1), np.float32), GRID.crop((slice(1), slice(1), slice(1))))
    with pytest.raises(ProdmError, match="cannot paste float32 values into int16 ones"):
        numbered(GRID).paste(block)


def test_each_way_of_not_matching_is_said() -> None:
    shifted = Grid(GRID.shape, GRID.spacing_mm, (1.0, 2.0, 6.0))
    assert GRID.mismatch(shifted) == "it lies (0, 0, 3) mm (x, y, z) away"
    assert GRID.mismatch(Grid((3, 4, 6), GRID.spacing_mm, GRID.origin_xyz_mm)) == (
        "it has (3, 4, 6) voxels (z, y, x) instead of (3, 4, 5)"
    )
    assert GRID.mismatch(GRID.flip(2)) == "its axes point in other directions"
    rounded = Grid(GRID.shape, (3.0, 0.5, 0.5000001), (1.0, 2.00001, 3.0))
    assert GRID.mismatch(rounded) is None
