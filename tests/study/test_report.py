"""The report unblinds what was answered, only when it may, and harms nobody who opens it."""

import csv
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from prodm.errors import ProdmError
from prodm.study.analysis import analyse
from prodm.study.blinding import read_key
from prodm.study.criteria import CRITERION_NAMES
from prodm.study.report import write_report
from prodm.study.results import read_results
from prodm.study.store import AnswerStore

StudyMaker = Callable[..., Path]
SCORES = {"original": 1, "unet": 3, "prodm": 5}
EVIL = "=HYPERLINK(\"x\")<script>alert('x')</script>"


def answer_all(
    folder: Path, scores: dict[str, int] = SCORES, *, finish: bool = True, comment: str = ""
) -> None:
    """Every reader gives each method its score, whatever label it stands under."""
    key = read_key(folder / "key")
    with AnswerStore(folder) as store:
        for reader in store.readers():
            for record in store.readings(reader):
                methods = [key.methods[image] for image in record.images]
                version = 0
                for slot, method in enumerate(methods):
                    for criterion in CRITERION_NAMES:
                        answers = store.rate(
                            reader, record.reading_id, version, slot, criterion, scores[method]
                        )
                        version = answers.version
                places = sorted(methods, key=lambda m: -scores[m])
                ranking = [places.index(method) + 1 for method in methods]
                version = store.rank(reader, record.reading_id, version, ranking).version
                if comment:
                    store.comment(reader, record.reading_id, version, comment)
            if finish:
                store.finish(reader)


def test_answers_go_back_to_their_methods(study_of: StudyMaker) -> None:
    folder = study_of(4, num_repeats=2)
    answer_all(folder)
    results = read_results(folder)
    assert len(results.ratings) == 2 * 6 * 9
    assert all(rating.score == SCORES[rating.method] for rating in results.ratings)
    assert all(
        placing.place == {"prodm": 1, "unet": 2, "original": 3}[placing.method]
        for placing in results.placings
    )
    assert results.methods == ("original", "unet", "prodm")
    assert {rating.label for rating in results.ratings} == {"M1", "M2", "M3"}
    assert sum(rating.is_repeat for rating in results.ratings) == 2 * 2 * 9


def test_an_unfinished_study_stays_blind_unless_told(study_of: StudyMaker) -> None:
    folder = study_of(2)
    answer_all(folder, finish=False)
    with pytest.raises(ProdmError, match=r"but Lee \(2 of 2 cases\), Roy .* or add --unfinished"):
        read_results(folder)
    results = read_results(folder, unfinished=True)
    assert results.unfinished == ("Lee (2 of 2 cases)", "Roy (2 of 2 cases)")
    assert len(results.ratings) == 2 * 2 * 9


def test_an_unfinished_study_does_not_open_the_key(study_of: StudyMaker) -> None:
    folder = study_of(1)
    shutil.rmtree(folder / "key")
    with pytest.raises(ProdmError, match="--unfinished"):
        read_results(folder)


def test_a_study_without_readers_has_no_results(study_of: StudyMaker) -> None:
    with pytest.raises(ProdmError, match="has no readers"):
        read_results(study_of(1, readers=()))


def test_the_key_may_live_elsewhere_but_must_fit(study_of: StudyMaker, tmp_path: Path) -> None:
    folder, other = study_of(1), study_of(1, name="other")
    answer_all(folder)
    (folder / "key").rename(tmp_path / "safe")
    assert len(read_results(folder, tmp_path / "safe").ratings) == 2 * 9
    with pytest.raises(ProdmError, match="belongs to another study"):
        read_results(folder, other / "key" / "key.json")


@pytest.fixture(scope="module")
def report(shared_study: Path) -> Path:
    output = shared_study / "report"
    answer_all(shared_study, comment=EVIL)
    output.mkdir()
    results = read_results(shared_study)
    write_report(output, results, analyse(results))
    return output


def test_the_report_has_tables_figures_and_one_page(report: Path) -> None:
    assert {path.name for path in report.iterdir()} == {
        "report.html", "report.json", "ratings.csv", "rankings.csv", "comments.csv", "summary.csv",
        "comparisons.csv", "ranking_summary.csv", "agreement.csv",
        *(f"{name}.{kind}" for name in ("violin", "box", "ranking") for kind in ("png", "svg")),
    }  # fmt: skip
    for figure in report.glob("*.svg"):
        assert ElementTree.parse(figure).getroot().tag.endswith("svg")
    for figure in report.glob("*.png"):
        assert figure.read_bytes().startswith(b"\x89PNG")


def test_tables_hold_what_was_said(report: Path) -> None:
    with (report / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    for row in rows:
        assert float(row["mean"]) == SCORES[row["method"]]
        assert float(row["sd"]) == 0
        assert row["num_ratings"] == "12"
    with (report / "comparisons.csv").open() as file:
        tests = [row for row in csv.DictReader(file) if row["readers"] == "all"]
    # six cases, all in one direction: p = 2 / 64, times 9 tests (the rank: times 3)
    assert {float(row["p_value"]) for row in tests} == {2 / 64}
    assert {row["p_holm"] for row in tests if row["criterion"] != "overall_rank"} == {"0.28125"}
    assert {row["p_holm"] for row in tests if row["criterion"] == "overall_rank"} == {"0.09375"}
    with (report / "ranking_summary.csv").open() as file:
        ranking = {row["method"]: row for row in csv.DictReader(file)}
    assert ranking["prodm"]["place_1"] == "12"
    content = json.loads((report / "report.json").read_text())
    assert {row["weighted_kappa"] for row in content["agreement"]} == {1.0}


def test_a_study_with_too_few_cases_says_so(report: Path) -> None:
    # 9 tests of 6 cases: 9 x 2 / 64 = 0.28 at best; 9 x 2 / 512 = 0.035 with nine cases
    html = (report / "report.html").read_text()
    assert "With 6 cases no difference can reach p &lt; 0.05" in html
    assert "it takes 9." in html


def test_what_readers_write_cannot_run(report: Path) -> None:
    html = (report / "report.html").read_text()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    with (report / "comments.csv").open() as file:
        assert all(row["text"] == "'" + EVIL for row in csv.DictReader(file))


def test_the_page_needs_nothing_else(report: Path) -> None:
    html = (report / "report.html").read_text()
    sources = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert len(sources) == 3
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)


def test_a_study_that_nobody_has_begun_can_be_reported(
    study_of: StudyMaker, tmp_path: Path
) -> None:
    results = read_results(study_of(2), unfinished=True)
    write_report(tmp_path, results, analyse(results))
    assert "Unblinded before the end" in (tmp_path / "report.html").read_text()


def test_one_reader_and_two_methods_can_be_reported(study_of: StudyMaker, tmp_path: Path) -> None:
    folder = study_of(3, methods=("original", "prodm"), readers=("Lee",))
    answer_all(folder)
    output = tmp_path / "out"
    output.mkdir()
    results = read_results(folder)
    write_report(output, results, analyse(results))
    assert "nothing to compare" in (output / "report.html").read_text()


def test_many_methods_can_be_reported(study_of: StudyMaker, tmp_path: Path) -> None:
    methods = tuple("abcdef")
    folder = study_of(3, methods=methods)
    answer_all(folder, {method: 1 + n % 5 for n, method in enumerate(methods)})
    output = tmp_path / "out"
    output.mkdir()
    results = read_results(folder)
    write_report(output, results, analyse(results))
    with (output / "summary.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 18
