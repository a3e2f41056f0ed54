"""The report is one file, says what matters first, and opens in a real browser."""

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prodm.correction import Corrected, Identity, correct
from prodm.correction.explanation import Explanation
from prodm.correction.report import About, report_html
from prodm.correction.trust import spread_of

CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="module")
def corrected(moved: Any) -> Corrected:  # noqa: ANN401
    """What an identity leaves, with made-up samples and doubts."""
    result = correct(moved.moving, moved.heart, Identity())
    spread = spread_of([result.after.agatston + shift for shift in (-170.0, -20.0, 0.0, 30.0)])
    return replace(result, spread=spread, warnings=("a <wide> doubt",))


@pytest.fixture
def html(corrected: Corrected, moved: Any) -> str:  # noqa: ANN401
    about = About("scan <7>", "the heart, found by prodm", ("it was made up",), ("nothing else",))
    return report_html(corrected, moved.moving, about)


def test_the_report_is_complete_in_itself(html: str) -> None:
    assert not re.search(r"https?:|src=\"(?!data:)|<link|<script|url\(", html)


def test_the_report_says_what_matters(html: str, corrected: Corrected) -> None:
    words = re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL))
    for text in (
        "Research use only",
        f"{corrected.before.agatston:.0f}",
        "90 % interval",
        "severe",
        "75%",
        "What was not",
        "It was made up.",
        "difference",
    ):
        assert text in words or text in html
    assert "A &lt;wide&gt; doubt." in html
    assert "scan &lt;7&gt;" in html
    assert html.count("<figure>") == len(re.findall("data:image/png", html)) > 2


def test_the_motion_appears_only_where_calcium_changed(
    html: str,
    corrected: Corrected,
    moved: Any,  # noqa: ANN401
) -> None:
    assert "Does a motion explain" not in html
    angles_deg = tuple(range(0, 180, 10))
    found = Explanation(0.12, angles_deg, tuple(0.02 * angle for angle in angles_deg))
    calm, doubtful, *others = corrected.rois
    calm = replace(calm, explained=found)
    doubtful = replace(doubtful, explained=replace(found, residual=0.62))
    result = replace(corrected, rois=(calm, doubtful, *others))
    shown = report_html(result, moved.moving, About("scan", "given"))
    assert "Does a motion explain the change?" in shown
    assert "moving by up to 3.4 mm explains 88%" in shown
    assert shown.count('<figure class="doubt">') == 1
    assert "no motion explains it, 62% is left" in shown


def test_an_unchanged_scan_has_a_report_too(move_made: Any) -> None:  # noqa: ANN401
    moved = move_made(lesions=())
    result = correct(moved.moving, moved.heart, Identity())
    shown = report_html(result, moved.moving, About("scan", "given"))
    assert "unchanged" in shown
    assert "Slices that matter" not in shown


@pytest.fixture
def browser() -> Iterator[Any]:
    """A real chromium without a network."""
    if importlib.util.find_spec("playwright") is None or not CHROMIUM.exists():
        reason = f"playwright or {CHROMIUM} is missing"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [1100, 420])
def test_a_browser_shows_scores_first_and_every_picture(
    tmp_path: Path,
    html: str,
    browser: Any,  # noqa: ANN401
    width: int,
) -> None:
    (tmp_path / "report.html").write_text(html, encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 800})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("requestfailed", lambda request: errors.append(request.url[:80]))
    page.goto((tmp_path / "report.html").as_uri())
    for name in ("#before", "#after", "#interval", ".research"):
        box = page.locator(name).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 800  # seen without scrolling
    sizes = page.eval_on_selector_all("img", "all => all.map(i => i.naturalWidth)")
    assert sizes
    assert min(sizes) > 200
    overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0
    assert errors == []
