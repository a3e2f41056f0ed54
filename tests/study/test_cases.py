"""The same patch must be cut from every method, or the study is refused with a reason."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray

from prodm.errors import ProdmError
from prodm.study.cases import (
    CaseSource,
    check_cases,
    cut_case,
    cut_patches,
    parse_case,
    read_case_table,
)
from prodm.volume import Grid, Volume

SHAPE = (12, 40, 50)
GRID = Grid(SHAPE, (3.0, 0.5, 0.6), (-10.0, -20.0, 30.0))


def counted(grid: Grid = GRID) -> Volume:
    """Every voxel holds a value of its own, as far as int16 goes."""
    return Volume(np.arange(np.prod(grid.shape), dtype=np.int16).reshape(grid.shape), grid)


def save_nifti(path: Path, volume: Volume) -> Path:
    ras = np.diag([-1.0, -1.0, 1.0, 1.0]) @ volume.grid.affine
    nibabel.Nifti1Image(volume.hu.transpose(2, 1, 0), ras).to_filename(path)
    return path


def test_a_case_names_methods_and_a_place() -> None:
    case = parse_case("P1: original=a b.nii.gz ,unet=dir/b.nii.gz,region=mask.nii.gz")
    assert case.name == "P1"
    assert case.paths == {"original": Path("a b.nii.gz"), "unet": Path("dir/b.nii.gz")}
    assert case.region == Path("mask.nii.gz")


@pytest.mark.parametrize("text", ["P1", "P1:", ":a=b,c=d", "P1:a", "P1:a=b,,c=d", "P1:a=,c=d"])
def test_a_case_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(ProdmError, match="a case is written NAME:METHOD=SCAN"):
        parse_case(text)


def test_a_case_that_names_a_method_twice_is_refused() -> None:
    with pytest.raises(ProdmError, match="names 'a' twice"):
        parse_case("P1:a=x,a=y")


@pytest.mark.parametrize("center", ["1/2", "1/2/x", "1/2/3/4", "1/2/inf"])
def test_a_centre_is_three_numbers(center: str) -> None:
    with pytest.raises(ProdmError, match="a centre is three"):
        parse_case(f"P1:a=x,b=y,center={center}")


def test_a_table_groups_rows_into_cases(tmp_path: Path) -> None:
    table = tmp_path / "cases.csv"
    table.write_text(
        "\ufeffcase,method,path,center_xyz_mm,region\n"
        "P1,original,a.nii.gz,1 2 3,\nP1,prodm,sub/b.nii.gz,,\n"
        "P2,original,c.nii.gz,,m.nii.gz\nP2,prodm,d.nii.gz,,m.nii.gz\n",
        encoding="utf-8",
    )
    first, second = read_case_table(table)
    assert first.center_xyz_mm == (1.0, 2.0, 3.0)
    assert first.paths["prodm"] == tmp_path / "sub" / "b.nii.gz"
    assert second.region == tmp_path / "m.nii.gz"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("case,method\nP1,a\n", "it lacks 'path'"),
        ("case,method,path,colour\n", "it has 'colour'"),
        ("case,method,path\nP1,,x\n", "row 2: case, method and path must be filled in"),
        ("case,method,path\nP1,a,x\nP1,a,y\n", "the method 'a' twice"),
        ("case,method,path,region\nP1,a,x,m\nP1,b,y,n\n", "more than one centre or region"),
    ],
)
def test_a_wrong_table_is_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    table = tmp_path / "cases.csv"
    table.write_text(text)
    with pytest.raises(ProdmError, match=reason):
        read_case_table(table)


def test_a_missing_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProdmError, match="cannot read the table of cases"):
        read_case_table(tmp_path / "none.csv")


def source(name: str, *methods: str, **place: object) -> CaseSource:
    return CaseSource(name, {method: Path(method) for method in methods}, **place)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sources", "reason"),
    [
        ([], "a study needs cases"),
        ([source("P1", "a", "b"), source("P1", "a", "b")], "two cases are called 'P1'"),
        ([source("P1", "a")], "compares 2 to 6 methods, but P1 names 1"),
        ([source("P1", *"abcdefg")], "P1 names 7"),
        ([source("P1", "a", "b"), source("P2", "a", "c")], "every case needs the same methods"),
        (
            [source("P1", "a", "b", center_xyz_mm=(0, 0, 0), region=Path("m"))],
            "both a centre and a region",
        ),
    ],
)
def test_a_study_that_cannot_be_analysed_is_refused(sources: list[CaseSource], reason: str) -> None:
    with pytest.raises(ProdmError, match=reason):
        check_cases(sources)


def cut(
    volumes: dict[str, Volume],
    center: tuple[float, float, float] | None = None,
    region: NDArray[np.bool_] | None = None,
    shape: tuple[int, int, int] = (4, 8, 8),
) -> NDArray[np.int16]:
    patches = cut_patches(CaseSource("P1", {}, center), volumes, region, shape, None).patches
    return next(iter(patches.values()))


def test_the_patch_lies_around_the_centre() -> None:
    center = GRID.position_xyz_mm((5.5, 20.5, 30.5))
    expected = counted().hu[4:8, 17:25, 27:35]
    np.testing.assert_array_equal(cut({"a": counted()}, center), expected)


def test_a_patch_at_the_border_is_shifted_inside() -> None:
    corner = GRID.position_xyz_mm((0, 0, 49))
    np.testing.assert_array_equal(cut({"a": counted()}, corner), counted().hu[:4, :8, 42:])


def test_the_patch_lies_around_a_region() -> None:
    region = np.zeros(SHAPE, dtype=bool)
    region[4, 17, 27] = region[7, 24, 34] = True
    np.testing.assert_array_equal(
        cut({"a": counted()}, region=region), counted().hu[4:8, 17:25, 27:35]
    )


def test_a_block_no_larger_than_the_patch_is_taken_whole() -> None:
    np.testing.assert_array_equal(cut({"a": counted()}, shape=(16, 64, 64)), counted().hu)


def test_a_scan_without_a_place_is_refused() -> None:
    with pytest.raises(ProdmError, match="say where to look with center=X/Y/Z or region=MASK"):
        cut({"a": counted()})


def test_a_centre_outside_is_refused() -> None:
    with pytest.raises(ProdmError, match="outside of the scan"):
        cut({"a": counted()}, GRID.position_xyz_mm((0, 0, 51)))


def test_an_empty_region_is_refused() -> None:
    with pytest.raises(ProdmError, match="the region is empty"):
        cut({"a": counted()}, region=np.zeros(SHAPE, dtype=bool))


def test_grids_must_match() -> None:
    other = Grid(SHAPE, (3.0, 0.5, 0.5), (-10.0, -20.0, 30.0))
    with pytest.raises(ProdmError, match=r"need the grid of a, but for b its spacing is"):
        cut({"a": counted(), "b": counted(other)}, (0.0, 0.0, 40.0))


def test_decimals_give_no_method_away() -> None:
    hu = np.full((2, 3, 4), 40.6, dtype=np.float32)
    patch = cut({"a": Volume(hu, Grid((2, 3, 4), (1.0, 1.0, 1.0)))})
    assert patch.dtype == np.int16
    assert (patch == 41).all()


@pytest.mark.parametrize(("value", "reason"), [(np.nan, "not numbers"), (40000, "range of HU")])
def test_values_that_are_no_hounsfield_units_are_refused(value: float, reason: str) -> None:
    hu = np.full((2, 3, 4), value, dtype=np.float32)
    with pytest.raises(ProdmError, match=reason):
        cut({"a": Volume(hu, Grid((2, 3, 4), (1.0, 1.0, 1.0)))})


def test_all_methods_are_clipped_alike() -> None:
    volumes = {"a": counted(), "b": counted()}
    patches = cut_patches(CaseSource("P1", {}), volumes, None, SHAPE, clip_hu=(-200, 800)).patches
    assert {(p.min(), p.max()) for p in patches.values()} == {(0, 800)}


def test_a_patch_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prodm.study.cases.MAX_PATCH_BYTES", 2**10)
    with pytest.raises(ProdmError, match="choose a smaller --size"):
        cut({"a": counted()}, shape=SHAPE)


def test_scans_masks_and_corrected_folders_are_read_from_disk(tmp_path: Path) -> None:
    original = save_nifti(tmp_path / "scan.nii.gz", counted())
    corrected = tmp_path / "corrected-run"
    corrected.mkdir()
    save_nifti(corrected / "corrected.nii.gz", counted().with_hu(counted().hu + np.int16(1)))
    (corrected / "result.json").write_text("{}")
    save_nifti(corrected / "corrected-lesions.nii.gz", counted())
    region = np.zeros(SHAPE, dtype=np.int16)
    region[5:7, 20:22, 30:32] = 1
    mask = save_nifti(tmp_path / "mask.nii.gz", counted().with_hu(region))
    paths = {"original": original, "prodm": corrected}
    case = cut_case(CaseSource("P1", paths, region=mask), (4, 8, 8), None)
    np.testing.assert_array_equal(case.patches["original"], counted().hu[4:8, 17:25, 27:35])
    np.testing.assert_array_equal(case.patches["prodm"], case.patches["original"] + 1)
    assert case.grid.spacing_mm == pytest.approx(GRID.spacing_mm)
    assert set(case.inputs_sha256) == {"P1 original", "P1 prodm"}


def test_a_corrected_folder_without_its_scan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(ProdmError, match="holds no corrected scan"):
        cut_case(CaseSource("P1", {"a": tmp_path, "b": tmp_path}), (4, 8, 8), None)
