"""The heart is found between lungs made of ellipsoids, wherever and however they are scanned."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from prodm.anatomy.heart import HeartRegion, find_heart
from prodm.anatomy.lungs import find_carina, find_lungs, hull_of_lungs
from prodm.errors import ProdmError
from prodm.volume import Grid, Vector, Volume

Mask = NDArray[np.bool_]
Points = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]

LOW_XYZ_MM = (-185.0, -130.0, -160.0)  # a corner of the scan
SIZE_XYZ_MM = (370.0, 250.0, 330.0)
CORONARIES_XYZ_MM = {  # on the surface of the heart, in its fat
    "LM": (12.0, -32.0, 52.0),
    "LAD": (28.0, -70.0, 10.0),
    "LCX": (58.0, 10.0, 12.0),
    "RCA": (-30.0, -40.0, 5.0),
}
NOT_HEART_XYZ_MM = {
    "sternum": (0.0, -101.0, 20.0),
    "spine": (0.0, 65.0, 10.0),
    "descending aorta": (25.0, 38.0, 0.0),
    "aortic arch": (10.0, -10.0, 110.0),
    "liver": (-70.0, 0.0, -60.0),
    "right lung": (-80.0, 0.0, 30.0),
    "left chest wall": (160.0, 0.0, 10.0),
    "skin": (0.0, -112.0, 0.0),
}


def grid_of(spacing_mm: Vector) -> Grid:
    dz, dy, dx = spacing_mm
    shape = (int(SIZE_XYZ_MM[2] / dz), int(SIZE_XYZ_MM[1] / dy), int(SIZE_XYZ_MM[0] / dx))
    return Grid(shape, spacing_mm, LOW_XYZ_MM)


def coordinates(grid: Grid) -> Points:
    z, y, x = np.ogrid[: grid.shape[0], : grid.shape[1], : grid.shape[2]]
    x0, y0, z0 = grid.origin_xyz_mm
    dz, dy, dx = grid.spacing_mm
    return x * dx + x0, y * dy + y0, z * dz + z0


def ellipsoid(points: Points, center_mm: Vector, radii_mm: Vector) -> Mask:
    x, y, z = ((p - c) / r for p, c, r in zip(points, center_mm, radii_mm, strict=True))
    inside: Mask = x**2 + y**2 + z**2 <= 1
    return inside


def heart_of(points: Points) -> Mask:
    return ellipsoid(points, (15.0, -22.0, 0.0), (55.0, 50.0, 58.0))


def make_chest(grid: Grid, noise_hu: float = 10.0, shift_mm: Vector = (0.0, 0.0, 0.0)) -> Volume:
    """A chest whose parts are ellipsoids and cylinders; paint order decides."""
    x, y, z = (p - s for p, s in zip(coordinates(grid), shift_mm, strict=True))
    points = (x, y, z)
    hu = np.full(grid.shape, -1000.0, dtype=np.float32)
    everywhere = np.zeros(grid.shape, dtype=bool)
    hu[everywhere | ((x / 172) ** 2 + (y / 116) ** 2 <= 1)] = -90
    hu[everywhere | ((x / 160) ** 2 + (y / 108) ** 2 <= 1)] = 40
    ribs = (np.mod(z, 26) < 9) & (np.abs((x / 150) ** 2 + (y / 98) ** 2 - 1) < 0.08)
    hu[ribs] = 450
    for side in (-1, 1):
        hu[ellipsoid(points, (side * 76.0, 2.0, 20.0), (62.0, 88.0, 125.0))] = -850
    hu[everywhere | ((np.abs(x) < 20) & (y > -75) & (y < 45) & (z > 20) & (z < 160))] = 30
    hu[ellipsoid(points, (15.0, -22.0, 0.0), (61.0, 56.0, 64.0))] = -90
    hu[heart_of(points)] = 42
    hu[ellipsoid(points, (-70.0, 0.0, -105.0), (80.0, 95.0, 75.0))] = 55
    hu[ellipsoid(points, (75.0, 20.0, -115.0), (65.0, 85.0, 70.0))] = 45
    hu[everywhere | (np.hypot(x - 25, y - 38) < 13)] = 45
    hu[everywhere | (np.hypot(x, y - 75) < 22)] = 300
    hu[everywhere | ((np.abs(x) < 20) & (np.abs(y + 101) < 6) & (z > -40))] = 300
    hu[everywhere | ((np.hypot(x, y - 10) < 9) & (z > 85))] = -1000
    hu[ellipsoid(points, (30.0, -60.0, -140.0), (30.0, 20.0, 15.0))] = -950  # gas in the bowel
    for center in CORONARIES_XYZ_MM.values():
        hu[ellipsoid(points, center, (4.0, 4.0, 4.0))] = 600
    hu += np.random.default_rng(0).normal(0, noise_hu, hu.shape).astype(np.float32)
    return Volume(hu, grid)


def at(mask: Mask, grid: Grid, position_xyz_mm: Vector) -> bool:
    z, y, x = (round(i) for i in grid.index_zyx(position_xyz_mm))
    return bool(mask[z, y, x])


def overlap(one: Mask, other: Mask) -> float:
    return float(2 * (one & other).sum() / (one.sum() + other.sum()))


@pytest.fixture(scope="module")
def chest() -> Volume:
    return make_chest(grid_of((3.0, 2.0, 2.0)))


@pytest.fixture(scope="module")
def found(chest: Volume) -> HeartRegion:
    return find_heart(chest)


@pytest.mark.parametrize("artery", CORONARIES_XYZ_MM)
def test_the_coronary_arteries_lie_inside(chest: Volume, found: HeartRegion, artery: str) -> None:
    assert at(found.mask, chest.grid, CORONARIES_XYZ_MM[artery])


@pytest.mark.parametrize("place", NOT_HEART_XYZ_MM)
def test_what_is_not_heart_lies_outside(chest: Volume, found: HeartRegion, place: str) -> None:
    assert not at(found.mask, chest.grid, NOT_HEART_XYZ_MM[place])


def test_bone_is_nowhere_inside(chest: Volume, found: HeartRegion) -> None:
    x, y, z = coordinates(chest.grid)
    distance_mm = np.min(
        [
            np.sqrt((x - a) ** 2 + (y - b) ** 2 + (z - c) ** 2)
            for a, b, c in CORONARIES_XYZ_MM.values()
        ],
        axis=0,
    )
    assert not (found.mask & (chest.hu > 200) & (distance_mm > 8)).any()


def test_nearly_all_of_the_heart_and_little_else_is_inside(
    chest: Volume, found: HeartRegion
) -> None:
    heart = heart_of(coordinates(chest.grid))
    assert (found.mask & heart).sum() > 0.97 * heart.sum()
    assert found.mask.sum() < 2 * heart.sum()
    assert found.warnings == ()


def test_little_of_the_liver_is_inside(chest: Volume, found: HeartRegion) -> None:
    liver = ellipsoid(coordinates(chest.grid), (-70.0, 0.0, -105.0), (80.0, 95.0, 75.0))
    assert (found.mask & liver).sum() < 0.04 * liver.sum()


def test_the_carina_is_where_the_trachea_ends(chest: Volume) -> None:
    coarse = chest.resample((3.0, 3.0, 3.0))
    lungs = find_lungs(coarse)
    assert lungs is not None
    carina = find_carina(coarse, hull_of_lungs(lungs, coarse.spacing_mm))
    assert carina is not None
    assert coarse.grid.position_xyz_mm((carina, 0, 0))[2] == pytest.approx(85, abs=6)


def test_right_and_left_lung_are_told_apart(chest: Volume) -> None:
    coarse = chest.resample((3.0, 3.0, 3.0))
    lungs = find_lungs(coarse)
    assert lungs is not None
    assert at(lungs.right, coarse.grid, (-80.0, 0.0, 50.0))
    assert at(lungs.left, coarse.grid, (85.0, 30.0, 50.0))
    assert not (lungs.right & lungs.left).any()


def test_moving_the_patient_moves_the_region(chest: Volume, found: HeartRegion) -> None:
    moved = make_chest(chest.grid, shift_mm=(6.0, -4.0, 9.0))  # 3, -2 and 3 voxels
    expected = np.roll(found.mask, (3, -2, 3), axis=(0, 1, 2))
    assert overlap(find_heart(moved).mask, expected) > 0.97


def test_moving_the_table_changes_nothing(chest: Volume, found: HeartRegion) -> None:
    grid = Grid(chest.shape, chest.spacing_mm, (40.0, -300.0, 1200.0))
    np.testing.assert_array_equal(find_heart(Volume(chest.hu, grid)).mask, found.mask)


@pytest.mark.parametrize("spacing_mm", [(5.0, 2.0, 2.0), (1.5, 3.0, 3.0)])
def test_another_spacing_gives_the_same_region(
    chest: Volume, found: HeartRegion, spacing_mm: Vector
) -> None:
    other = make_chest(grid_of(spacing_mm))
    mask = find_heart(other).mask
    z, y, x = (
        np.clip(np.rint(np.arange(n) * here / there).astype(int), 0, limit - 1)
        for n, here, there, limit in zip(
            chest.shape, chest.spacing_mm, spacing_mm, other.shape, strict=True
        )
    )
    assert overlap(mask[np.ix_(z, y, x)], found.mask) > 0.93


def test_integers_and_padding_are_read_like_any_scan(chest: Volume, found: HeartRegion) -> None:
    hu = np.rint(chest.hu).astype(np.int16)
    y, x = np.ogrid[: hu.shape[1], : hu.shape[2]]
    hu[:, np.hypot(y - 65, x - 92) > 95] = -1024  # a round field of view, padding as air
    assert overlap(find_heart(Volume(hu, chest.grid)).mask, found.mask) > 0.97


@pytest.fixture
def cardiac_view(chest: Volume) -> Volume:
    z, y, x = (round(i) for i in chest.grid.index_zyx((-85.0, -120.0, -70.0)))
    return chest.crop((slice(z, z + 47), slice(y, y + 105), slice(x, x + 100)))


def test_the_heart_is_found_where_the_lungs_are_cut(
    chest: Volume, found: HeartRegion, cardiac_view: Volume
) -> None:
    region = find_heart(cardiac_view)
    for position in CORONARIES_XYZ_MM.values():
        assert at(region.mask, cardiac_view.grid, position)
    for place in ("sternum", "spine", "descending aorta"):
        assert not at(region.mask, cardiac_view.grid, NOT_HEART_XYZ_MM[place])
    first = [round(i) for i in chest.grid.index_zyx(cardiac_view.grid.origin_xyz_mm)]
    window = tuple(slice(i, i + n) for i, n in zip(first, cardiac_view.shape, strict=True))
    assert overlap(region.mask, found.mask[window]) > 0.85


def test_a_view_without_spine_says_that_the_aorta_may_be_inside(cardiac_view: Volume) -> None:
    y = round(cardiac_view.grid.index_zyx((0.0, 48.0, 0.0))[1])
    front = cardiac_view.crop((slice(None), slice(0, y), slice(None)))
    assert any("descending aorta" in warning for warning in find_heart(front).warnings)


def impossible_scans() -> Iterator[tuple[str, Volume]]:
    grid = grid_of((6.0, 4.0, 4.0))
    points = coordinates(grid)
    rng = np.random.default_rng(0)
    air = np.full(grid.shape, -1000, dtype=np.float32)
    yield "empty", Volume(air, grid)
    yield "water", Volume(np.zeros(grid.shape, dtype=np.float32), grid)
    yield "noise", Volume(rng.normal(0, 400, grid.shape).astype(np.float32), grid)
    abdomen = air.copy()
    abdomen[ellipsoid(points, (0.0, 0.0, 0.0), (170.0, 110.0, 900.0))] = 50
    for x in (-80.0, 0.0, 80.0):
        abdomen[ellipsoid(points, (x, -50.0, -40.0), (30.0, 25.0, 40.0))] = -950
    yield "abdomen", Volume(abdomen, grid)
    head = air.copy()
    head[ellipsoid(points, (0.0, 0.0, 0.0), (80.0, 100.0, 110.0))] = 900
    head[ellipsoid(points, (0.0, 0.0, 0.0), (72.0, 92.0, 102.0))] = 35
    for x in (-20.0, 20.0):
        head[ellipsoid(points, (x, -70.0, -40.0), (14.0, 14.0, 18.0))] = -990
    yield "head", Volume(head, grid)
    chest = make_chest(grid)
    yield "lung bases", chest.crop((slice(5, 15), slice(None), slice(None)))
    yield "one slice", chest.crop((slice(27, 28), slice(None), slice(None)))
    one_lung = chest.hu.copy()
    one_lung[:, :, : grid.shape[2] // 2] = np.maximum(one_lung[:, :, : grid.shape[2] // 2], 20)
    yield "one lung", Volume(one_lung, grid)


@pytest.fixture(scope="module")
def impossible() -> dict[str, Volume]:
    return dict(impossible_scans())


@pytest.mark.parametrize(
    "name",
    ["empty", "water", "noise", "abdomen", "head", "lung bases", "one slice", "one lung"],
)
def test_where_there_is_no_heart_a_region_is_asked_for(
    impossible: dict[str, Volume], name: str
) -> None:
    with pytest.raises(ProdmError, match=r"the heart was not found: .*--region"):
        find_heart(impossible[name])


def test_other_axes_are_refused(chest: Volume) -> None:
    with pytest.raises(ProdmError, match="left, back and head"):
        find_heart(chest.flip(0))
