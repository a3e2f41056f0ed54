"""The study as readers meet it: a real browser, a real server, and all that goes wrong."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from prodm.study.criteria import CRITERION_NAMES, CRITERION_TITLES
from prodm.study.records import ReadingRecord
from prodm.study.store import AnswerStore

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
StudyMaker = Callable[..., Path]
Serve = Callable[..., Any]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None and "CI" not in os.environ, reason="chromium is not installed"
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM, "chromium is not installed"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Callable[[], Page]]:
    """Open tabs of browsers that share nothing; any error on a page fails the test."""
    contexts, errors = [], []

    def open_tab(**options: Any) -> Page:  # noqa: ANN401
        contexts.append(
            browser.new_context(**({"viewport": {"width": 1366, "height": 768}} | options))
        )
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        return page

    yield open_tab
    for context in contexts:
        context.close()
    assert not errors


def enter(page: Page, url: str, who: str) -> None:
    page.goto(url)
    page.fill("#who", who)
    page.press("#who", "Enter")
    page.click("#start")
    ready(page, 1)


def ready(page: Page, number: int) -> None:
    """Wait until a case is on screen."""
    expect(page.locator("#position")).to_contain_text(f"Case {number} of")
    expect(page.locator("#reading")).not_to_have_attribute("aria-busy", "true")


def choose(page: Page, label: str, choice: int) -> None:
    page.get_by_role("radiogroup", name=label).get_by_text(str(choice), exact=True).click()


def chosen(page: Page, label: str) -> str:
    marked = page.get_by_role("radiogroup", name=label).locator('[aria-checked="true"]')
    return marked.inner_text() if marked.count() else ""


def saved(page: Page) -> None:
    expect(page.locator("#save-state")).to_have_attribute("data-kind", "saved")


def click_case(page: Page, scores: list[list[int]], ranking: list[int]) -> None:
    """Answer a case with the mouse: scores by method and criterion."""
    for slot, row in enumerate(scores):
        for criterion, score in zip(CRITERION_NAMES, row, strict=True):
            choose(page, f"M{slot + 1} {CRITERION_TITLES[criterion]}", score)
    for slot, place in enumerate(ranking):
        choose(page, f"Rank of M{slot + 1}", place)
    saved(page)


def stored(folder: Path, name: str) -> list[ReadingRecord]:
    with AnswerStore(folder) as store:
        reader = store.reader_by_name(name)
        assert reader
        return store.readings(reader)


def scores_of(record: ReadingRecord) -> list[list[int | None]]:
    return [[slot[criterion] for criterion in CRITERION_NAMES] for slot in record.answers.ratings]


def plan(case: int, reader: int) -> tuple[list[list[int]], list[int]]:
    """What a reader answers: different for every cell."""
    scores = [[(case + reader + 2 * slot + k) % 5 + 1 for k in range(3)] for slot in range(3)]
    return scores, [(slot + case + reader) % 3 + 1 for slot in range(3)]


def test_two_readers_finish_a_study_with_mouse_and_with_keyboard(
    study_of: StudyMaker, serve_process: Serve, tab: Callable[..., Page]
) -> None:
    folder = study_of(2)
    server = serve_process(folder)
    mouse, keyboard = tab(), tab(color_scheme="dark")
    enter(mouse, server.url, "Lee")
    keyboard.goto(server.url)
    expect(keyboard.locator("#who")).to_be_focused()
    keyboard.keyboard.type("roy")
    keyboard.keyboard.press("Enter")
    expect(keyboard.locator("#start")).to_be_focused()
    keyboard.keyboard.press("Enter")

    for case in range(2):
        scores, ranking = plan(case, 0)
        ready(mouse, case + 1)
        click_case(mouse, scores, ranking)
        if case == 0:
            mouse.fill("#comment", "spot in M2 <b>bright</b>")
            mouse.click("#next")
        scores, ranking = plan(case, 1)
        ready(keyboard, case + 1)
        for digit in [score for row in scores for score in row] + ranking:
            keyboard.keyboard.press(str(digit))
        saved(keyboard)
        if case == 0:
            keyboard.keyboard.press("c")
            keyboard.keyboard.type("by keys")
            keyboard.keyboard.press("Escape")
        keyboard.keyboard.press("n")

    expect(keyboard.locator("#overview")).to_be_visible()
    expect(keyboard.locator("#overview-text")).to_have_text("2 of 2 cases are complete.")
    for _ in range(2):
        keyboard.keyboard.press("Tab")
    expect(keyboard.locator("#finish-sure")).to_be_focused()
    keyboard.keyboard.press("Space")
    keyboard.keyboard.press("Tab")
    keyboard.keyboard.press("Enter")
    expect(keyboard.locator("#done")).to_be_visible()

    mouse.click("#next")
    mouse.check("#finish-sure")
    mouse.click("#finish")
    expect(mouse.locator("#done")).to_be_visible()

    for reader, (name, comment) in enumerate(
        [("Lee", "spot in M2 <b>bright</b>"), ("Roy", "by keys")]
    ):
        for case, record in enumerate(stored(folder, name)):
            scores, ranking = plan(case, reader)
            assert scores_of(record) == scores
            assert list(record.answers.ranking) == ranking
            assert record.answers.comment == (comment if case == 0 else "")
    with AnswerStore(folder) as store:
        assert all(reader.finished_at for reader in store.readers())


def test_a_reload_in_the_middle_loses_nothing(
    study_of: StudyMaker, serve_process: Serve, tab: Callable[..., Page]
) -> None:
    folder = study_of(2)
    page = tab()
    enter(page, serve_process(folder).url, "Lee")
    choose(page, "M2 Vessel fidelity", 4)
    choose(page, "Rank of M3", 1)
    page.locator("#comment").press_sequentially("half a word")
    page.reload()
    ready(page, 1)
    saved(page)
    assert chosen(page, "M2 Vessel fidelity") == "4"
    assert chosen(page, "Rank of M3") == "1"
    expect(page.locator("#comment")).to_have_value("half a word")
    answers = stored(folder, "Lee")[0].answers
    assert answers.comment == "half a word"
    assert answers.ratings[1]["vessel_fidelity"] == 4
    assert answers.ranking == (None, None, 1)


def test_a_killed_server_loses_nothing(
    study_of: StudyMaker, serve_process: Serve, tab: Callable[..., Page]
) -> None:
    folder = study_of(2)
    server = serve_process(folder)
    page = tab()
    enter(page, server.url, "Lee")
    choose(page, "M1 Motion suppression", 2)
    saved(page)
    server.kill()
    choose(page, "M1 Clinical usability", 3)
    choose(page, "M1 Motion suppression", 5)
    expect(page.locator("#save-state")).to_contain_text("The server does not answer")
    assert stored(folder, "Lee")[0].answers.ratings[0]["motion_suppression"] == 2
    server.start()
    saved(page)
    ratings = stored(folder, "Lee")[0].answers.ratings[0]
    assert (ratings["motion_suppression"], ratings["clinical_usability"]) == (5, 3)

    server.kill()
    choose(page, "M1 Vessel fidelity", 1)
    page.close()  # the browser goes too, and comes back after the server
    server.start()
    again = page.context.new_page()
    again.goto(server.url)
    again.fill("#who", "Lee")
    again.press("#who", "Enter")
    ready(again, 1)
    saved(again)
    assert chosen(again, "M1 Vessel fidelity") == "1"
    assert stored(folder, "Lee")[0].answers.ratings[0]["vessel_fidelity"] == 1


def test_a_reader_can_go_back_and_change_an_answer(
    study_of: StudyMaker, serve_process: Serve, tab: Callable[..., Page]
) -> None:
    folder = study_of(3)
    page = tab()
    enter(page, serve_process(folder).url, "Lee")
    click_case(page, *plan(0, 0))
    expect(page.locator("#progress-text")).to_have_text("1 complete")
    page.click("#next")
    ready(page, 2)
    page.click("#previous")
    ready(page, 1)
    choose(page, "M3 Motion suppression", 1)
    choose(page, "Rank of M1", 3)  # the place is taken from whoever had it, and swapped
    saved(page)
    record = stored(folder, "Lee")[0]
    scores, _ = plan(0, 0)
    scores[2][0] = 1
    assert scores_of(record) == scores
    assert record.answers.ranking == (3, 2, 1)  # was 1, 2, 3
    page.click("#open-overview")
    page.get_by_role("button", name="Case 3, empty").click()
    ready(page, 3)


def test_a_second_tab_is_told_that_it_is_stale(
    study_of: StudyMaker, serve_process: Serve, tab: Callable[..., Page]
) -> None:
    folder = study_of(1)
    server = serve_process(folder)
    one, two = tab(), tab()
    enter(one, server.url, "Lee")
    enter(two, server.url, "Lee")
    choose(one, "M1 Vessel fidelity", 5)
    saved(one)
    choose(two, "M1 Vessel fidelity", 2)
    expect(two.locator("#notice")).to_contain_text("changed in another window")
    assert chosen(two, "M1 Vessel fidelity") == "5"
    assert stored(folder, "Lee")[0].answers.ratings[0]["vessel_fidelity"] == 5
    choose(two, "M1 Vessel fidelity", 2)  # now with open eyes
    saved(two)
    expect(two.locator("#notice")).to_be_hidden()
    assert stored(folder, "Lee")[0].answers.ratings[0]["vessel_fidelity"] == 2


def test_a_wrong_token_stays_outside_and_the_right_one_enters(
    study_of: StudyMaker, serve_process: Serve, tab: Callable[..., Page]
) -> None:
    folder = study_of(1)
    server = serve_process(folder, "--host", "0.0.0.0", "--public-name", "127.0.0.1")
    page = tab()
    for wrong in ("Lee", "aaaaa-aaaaa-aaaaa-aaaaa-aaaaa"):
        page.goto(server.url)
        page.fill("#who", wrong)
        page.press("#who", "Enter")
        expect(page.locator("#sign-in-error")).to_contain_text("no reader with this token")
    expect(page.locator("#known-readers option")).to_have_count(0)
    page.goto("about:blank")
    page.goto(server.addresses["readers"]["Roy"])
    expect(page.locator("#reader-name")).to_have_text("Roy")
    assert "token" not in page.url
    page.click("#start")
    ready(page, 1)


def pixels(page: Page) -> list[str]:
    """All images as they are drawn."""
    drawn: list[str] = page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>"
        " done([...document.querySelectorAll('canvas')].map((c) => c.toDataURL())))))"
    )
    return drawn


def test_images_scroll_window_and_zoom_in_step(
    study_of: StudyMaker, serve_process: Serve, tab: Callable[..., Page]
) -> None:
    page = tab()
    enter(page, serve_process(study_of(1)).url, "Lee")
    expect(page.locator("#slice-value")).to_have_text("3 / 4")
    shown = pixels(page)

    def changed() -> bool:
        nonlocal shown
        before, shown = shown, pixels(page)
        different = [a != b for a, b in zip(before, shown, strict=True)]
        assert all(different) or not any(different)  # all move, or none
        return all(different)

    assert len(shown) == 3
    page.locator("canvas").nth(1).hover()
    page.mouse.wheel(0, 120)
    expect(page.locator("#slice-value")).to_have_text("4 / 4")
    page.keyboard.press("Home")
    expect(page.locator("#slice-value")).to_have_text("1 / 4")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#slice-value")).to_have_text("2 / 4")
    assert changed()
    page.keyboard.press("w")
    expect(page.locator("#width-value")).to_have_text("1000")
    assert changed()
    page.mouse.down()
    page.mouse.move(*[v + 50 for v in center(page, 1)])
    page.mouse.up()
    expect(page.locator("#width-value")).to_have_text("1100")
    expect(page.locator("#level-value")).to_have_text("400")
    assert changed()
    page.keyboard.press("+")
    expect(page.locator("#zoom-value")).to_have_text("125 %")
    assert changed()
    page.keyboard.press("Shift+ArrowLeft")
    assert changed()
    page.keyboard.press("0")
    expect(page.locator("#zoom-value")).to_have_text("100 %")
    assert changed()
    page.get_by_role("button", name="Lung").click()
    expect(page.locator("#level-value")).to_have_text("-600")
    assert changed()


def center(page: Page, number: int) -> tuple[float, float]:
    box = page.locator("canvas").nth(number).bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_fingers_scroll_and_pinch_on_a_tablet(
    study_of: StudyMaker, serve_process: Serve, tab: Callable[..., Page]
) -> None:
    page = tab(viewport={"width": 820, "height": 1180}, has_touch=True, is_mobile=True)
    enter(page, serve_process(study_of(1)).url, "Lee")
    page.click("[data-tool=scroll]")
    x, y = center(page, 0)
    touch = page.context.new_cdp_session(page)

    def fingers(kind: str, *points: tuple[float, float]) -> None:
        touches = [{"x": px, "y": py, "id": n} for n, (px, py) in enumerate(points)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})

    fingers("touchStart", (x, y))
    fingers("touchMove", (x, y - 30))
    fingers("touchEnd")
    expect(page.locator("#slice-value")).to_have_text("1 / 4")
    fingers("touchStart", (x - 20, y), (x + 20, y))
    fingers("touchMove", (x - 40, y), (x + 40, y))
    fingers("touchEnd")
    expect(page.locator("#zoom-value")).to_have_text("200 %")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_every_control_has_a_name_and_the_theme_follows_the_system(
    study_of: StudyMaker, serve_process: Serve, tab: Callable[..., Page]
) -> None:
    page = tab(color_scheme="dark")
    enter(page, serve_process(study_of(1)).url, "Lee")
    unnamed = page.evaluate(
        "() => [...document.querySelectorAll('button, input, textarea, canvas, [role]')].filter("
        "(e) => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length"
        " || e.id === 'save-state' || e.id === 'notice' || e.id === 'sign-in-error'))"
        ".map((e) => e.outerHTML)"
    )
    assert unnamed == []
    definition = page.get_by_role("radio", name="M1, Motion suppression 5: No visible motion")
    assert definition.count() == 1
    background = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.click(".theme")
    light = page.evaluate(background)
    assert (dark, light) == ("rgb(14, 20, 23)", "rgb(243, 245, 246)")
    page.keyboard.press("d")
    expect(page.locator("#definitions")).to_contain_text("Some motion artifacts remain but mostly")


def test_one_browser_can_be_handed_from_reader_to_reader(
    study_of: StudyMaker, serve_process: Serve, tab: Callable[..., Page]
) -> None:
    folder = study_of(1)
    page = tab()
    enter(page, serve_process(folder).url, "Lee")
    choose(page, "M1 Vessel fidelity", 5)
    page.locator("#comment").press_sequentially("last words")
    page.click("#open-help")
    page.click("#sign-out")
    page.fill("#who", "Roy")
    page.press("#who", "Enter")
    page.click("#start")
    ready(page, 1)
    assert chosen(page, "M1 Vessel fidelity") == ""
    expect(page.locator("#comment")).to_have_value("")
    assert stored(folder, "Lee")[0].answers.comment == "last words"
    assert stored(folder, "Roy")[0].answers.is_empty


CUT_OFF = """() => [...document.querySelectorAll(".question")].filter((question) => {
  const card = (question.closest(".method") ?? question).getBoundingClientRect();
  return [question, ...question.querySelectorAll("button")].some((part) => {
    const box = part.getBoundingClientRect();
    return box.height < 30 || box.bottom > card.bottom + 1 || box.right > card.right + 1;
  });
}).length"""
SIZES = """() => [...document.querySelectorAll("canvas")].map(
  (canvas) => `${canvas.clientWidth} x ${canvas.clientHeight}`)"""


@pytest.mark.parametrize("number", [2, 4, 6])
def test_no_question_is_cut_off_however_many_methods(
    study_of: StudyMaker, serve_process: Serve, tab: Callable[..., Page], number: int
) -> None:
    page = tab()
    enter(page, serve_process(study_of(1, methods=tuple("abcdef"[:number]))).url, "Lee")
    for width, height in ((1366, 768), (1024, 768), (820, 1180)):
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate(CUT_OFF) == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert len(set(page.evaluate(SIZES))) == 1  # methods are compared at one size
