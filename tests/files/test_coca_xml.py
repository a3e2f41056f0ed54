"""Outlines mean exactly the pixels that were drawn, and hostile XML is refused in a sentence."""

import plistlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from prodm.calcium import Vessel
from prodm.errors import ProdmError
from prodm.files.coca_writer import outline
from prodm.files.coca_xml import agatston_of_fields, pixels_inside, read_rois


def roi(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    """One ROI of three points in pixel columns 2 to 4, rows 2 and 3."""
    fields: dict[str, Any] = {
        "Area": 0.02,
        "Max": 250.0,
        "Name": "Right Coronary Artery",
        "NumberOfPoints": 3,
        "Point_mm": ["(1.0, 2.0, -33.5)"] * 3,
        "Point_px": ["(1.5, 1.5)", "(5.003922, 2.000000)", "(2.5, 4.2)"],
    }
    return fields | changes


def write(path: Path, *rois: Any, index: Any = 4) -> Path:  # noqa: ANN401
    images = [{"ImageIndex": index, "NumberOfROIs": len(rois), "ROIs": list(rois)}]
    path.write_bytes(plistlib.dumps({"Images": images}))
    return path


def crosses_odd_times(points: NDArray[np.float64], x: int, y: int) -> bool:
    """The textbook test, one pixel and one edge at a time."""
    inside = False
    previous = len(points) - 1
    for current in range(len(points)):
        (x1, y1), (x2, y2) = points[current], points[previous]
        if (y1 <= y < y2) or (y2 <= y < y1):
            crossing = (x2 - x1) * (y - y1) / (y2 - y1) + x1
            if x < crossing:
                inside = not inside
        previous = current
    return inside


@given(
    arrays(
        np.float64,
        st.tuples(st.integers(1, 9), st.just(2)),
        elements=st.one_of(
            st.integers(-2, 10).map(float),  # corners on pixels: ties must fall alike
            st.floats(-2, 10).map(lambda value: round(value, 6)),
        ),
    )
)
def test_filling_agrees_with_the_textbook_pixel_by_pixel(points: NDArray[np.float64]) -> None:
    expected = [[crosses_odd_times(points, x, y) for x in range(9)] for y in range(7)]
    np.testing.assert_array_equal(pixels_inside(points, (7, 9)), expected)


def test_a_drawn_polygon_by_hand() -> None:
    """Pixels are taken at integer coordinates; a pixel centre at + 0.5 would give six here."""
    points = np.array([[1.0, 1.0], [4.0, 1.0], [4.0, 3.0], [1.0, 3.0]])
    expected = np.zeros((5, 6), dtype=bool)
    expected[1:3, 1:4] = True
    np.testing.assert_array_equal(pixels_inside(points, (5, 6)), expected)
    np.testing.assert_array_equal(
        pixels_inside(points + 0.01, (5, 6)), np.roll(expected, (1, 1), (0, 1))
    )


@settings(max_examples=300)
@given(arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_an_outline_gives_back_exactly_its_pixels(pixels: NDArray[np.bool_]) -> None:
    """Any set: holes, islands in holes, diagonal touches, pixels at the border."""
    np.testing.assert_array_equal(pixels_inside(outline(pixels), pixels.shape), pixels)


def test_area_and_peak_alone_make_the_score(tmp_path: Path) -> None:
    """2 mm2 at 250 HU weigh 2, 5 mm2 at 400 HU weigh 4, and 120 HU is no calcium: 4 + 20."""
    path = write(
        tmp_path / "1.xml",
        roi(),
        roi(Area=0.05, Max=400.0, Name="Left Coronary Artery"),
        roi(Max=120.0),
    )
    total, per_vessel = agatston_of_fields(read_rois(path))
    assert total == pytest.approx(24)
    assert per_vessel == pytest.approx({Vessel.RCA: 4, Vessel.LM: 20})
    assert agatston_of_fields(read_rois(path), slice_spacing_mm=2.5)[0] == pytest.approx(20)


@pytest.mark.parametrize(
    ("name", "vessel"),
    [
        ("Left Anterior Descending Artery", Vessel.LAD),
        ("Left Circumflex Artery", Vessel.LCX),
        (" right coronary  artery", Vessel.RCA),
        ("Left Coronary Artery", Vessel.LM),
        ("1", Vessel.UNSPECIFIED),
        ("555614876", Vessel.UNSPECIFIED),
        ("Unnamed", Vessel.UNSPECIFIED),
    ],
)
def test_names_mean_vessels_and_dirty_ones_none(tmp_path: Path, name: str, vessel: Vessel) -> None:
    assert read_rois(write(tmp_path / "1.xml", roi(Name=name)))[0].vessel == vessel


def test_points_are_column_and_row_and_z_is_read_in_mm(tmp_path: Path) -> None:
    found = read_rois(write(tmp_path / "1.xml", roi()))[0]
    assert found.points_px[1].tolist() == [5.003922, 2.0]
    assert found.z_mm == -33.5
    assert found.image_index == 4


def test_a_name_that_is_no_text_means_no_vessel(tmp_path: Path) -> None:
    found = read_rois(write(tmp_path / "1.xml", roi(Name=1), roi(Name=[["x"]])))
    assert [r.vessel for r in found] == [Vessel.UNSPECIFIED] * 2


def test_empty_entries_are_left_out(tmp_path: Path) -> None:
    empty = {"NumberOfPoints": 0, "Point_px": [], "Point_mm": [], "Name": "Unnamed", "Max": 0}
    assert len(read_rois(write(tmp_path / "1.xml", empty, roi()))) == 1
    assert read_rois(write(tmp_path / "2.xml", empty, index=-1)) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"Point_px": ["(1, 2)", "(3, 4)"]}, "states 3 points but lists 2"),
        ({"NumberOfPoints": 7}, "states 7 points but lists 3"),
        ({"Point_px": ["(1, 2)", "(3, 4)", "__import__('os')"]}, "not a point"),
        ({"Point_px": ["(1, 2)", "(3, 4)", "(nan, 1)"]}, "not a point"),
        ({"Point_px": ["(1, 2)", "(3, 4)", 5]}, "not a point"),
        ({"Point_px": ["(1, 2)", "(3, 4)", "(1e300, 1)"]}, "beyond any image"),
        ({"Point_px": {"a": 1}}, "no list Point_px"),
        ({"Point_mm": []}, "no list Point_mm"),
        ({"Point_mm": ["(1, 2, 3)", "(1, 2, 3)", "(1, 2, 9)"]}, "not lie in one slice"),
        ({"Area": "large"}, "Area of an ROI must be a number"),
        ({"Area": 2**60}, "Area of an ROI must be a number"),
        ({"Max": True}, "Max of an ROI must be a number"),
        ({"Max": float("inf")}, "Max of an ROI must be a number"),
    ],
)
def test_a_malformed_roi_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ProdmError, match=sentence):
        read_rois(write(tmp_path / "1.xml", roi(**changes)))


@pytest.mark.parametrize("index", [-1, "3", 2.5, True, 2**63])
def test_an_image_index_must_be_a_count(tmp_path: Path, index: object) -> None:
    with pytest.raises(ProdmError, match="ImageIndex must be 0 or more"):
        read_rois(write(tmp_path / "1.xml", roi(), index=index))


BOMB = b"""<?xml version="1.0"?><!DOCTYPE plist [<!ENTITY a "ha">
<!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>
<plist version="1.0"><dict><key>Images</key><string>&c;</string></dict></plist>"""
OUTSIDE = b"""<?xml version="1.0"?><!DOCTYPE plist [<!ENTITY a SYSTEM "file:///etc/hostname">]>
<plist version="1.0"><dict><key>Images</key><string>&a;</string></dict></plist>"""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not xml",
        BOMB,
        OUTSIDE,
        b"<plist><dict><key>Images</key>",
        b"<plist><dict><array></dict></plist>",
        b"<plist><dict><integer>x</integer></dict></plist>",
        b"<plist><dict><key>d</key><date>never</date></dict></plist>",
        b"<plist><array><key>k</key></array></plist>",
        b"<plist><integer>1</integer></plist>",
        b"<plist><dict><key>Images</key><string>x</string></dict></plist>",
        b"<plist><dict><key>Images</key><array><string>x</string></array></dict></plist>",
        b"<plist></plist>",
        b"<plist><dict><key>Images</key>"
        + b"<array>" * 5000
        + b"</array>" * 5000
        + b"</dict></plist>",
        b"<plist><dict><key>Images</key><array><dict><key>ROIs</key><array>"
        + b"<array>" * 5000
        + b"</array>" * 5000
        + b"</array></dict></array></dict></plist>",
        b"<plist><dict><key>Images</key><array><dict><key>ROIs</key><array><integer>0x"
        + b"f" * 20_000
        + b"</integer></array></dict></array></dict></plist>",
        plistlib.dumps({"Images": []}, fmt=plistlib.FMT_BINARY),
        plistlib.dumps({"Images": [{"ImageIndex": 1, "ROIs": "x"}]}),
        plistlib.dumps({"Images": [{"ImageIndex": 1, "ROIs": ["x"]}]}),
    ],
)
def test_hostile_or_broken_files_are_refused_in_one_sentence(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "1.xml"
    path.write_bytes(content)
    with pytest.raises(ProdmError, match=r"1\.xml"):
        read_rois(path)


@settings(max_examples=100, deadline=None)
@given(position=st.integers(0, 900), byte=st.integers(0, 255))
def test_one_flipped_byte_never_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, position: int, byte: int
) -> None:
    path = write(tmp_path_factory.mktemp("flip") / "1.xml", roi())
    content = bytearray(path.read_bytes())
    content[position % len(content)] = byte
    path.write_bytes(bytes(content))
    try:
        read_rois(path)
    except ProdmError:
        return
