"""Orders must be chance, and nothing that the server can read may name a method."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prodm.errors import ProdmError
from prodm.study.blinding import (
    BlindCase,
    BlindStudy,
    image_path,
    plan_readings,
    read_key,
    read_study,
)
from prodm.study.making import StudySettings, add_readers, new_study
from prodm.study.store import AnswerStore

StudyMaker = Callable[..., Path]


def blind_study(num_cases: int, num_repeats: int = 0) -> BlindStudy:
    cases = tuple(
        BlindCase(f"case-{n:02d}", (1, 2, 2), (1.0, 1.0, 1.0), (f"a{n}", f"b{n}", f"c{n}"))
        for n in range(num_cases)
    )
    return BlindStudy("id", "title", 3, num_repeats, cases)


def test_every_case_is_shown_once_to_every_reader() -> None:
    study = blind_study(30)
    readings = plan_readings(study, np.random.default_rng(0))
    assert sorted(r.case_id for r in readings) == [f"case-{n:02d}" for n in range(30)]
    assert all(sorted(r.images) == sorted(study.case(r.case_id).images) for r in readings)
    assert not any(r.is_repeat for r in readings)


def test_readers_get_orders_of_their_own() -> None:
    rng = np.random.default_rng(0)
    one, two = (plan_readings(blind_study(30), rng) for _ in range(2))
    assert [r.case_id for r in one] != [r.case_id for r in two]
    slots = {r.case_id: r.images for r in two}
    assert any(r.images != slots[r.case_id] for r in one)


def test_every_method_stands_under_every_label_equally_often() -> None:
    rng = np.random.default_rng(0)
    study = blind_study(20)
    counts: Counter[tuple[str, ...]] = Counter()
    for _ in range(150):
        counts.update(tuple(i[0] for i in r.images) for r in plan_readings(study, rng))
    expected = 150 * 20 / 6
    chi2 = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(counts) == 6
    assert chi2 < 20.5  # 5 degrees of freedom, p = 0.001


def test_positions_of_cases_are_chance() -> None:
    rng = np.random.default_rng(1)
    study = blind_study(5)
    first = Counter(plan_readings(study, rng)[0].case_id for _ in range(1000))
    assert min(first.values()) > 150


def test_repeats_come_later_under_new_names() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        readings = plan_readings(blind_study(12, num_repeats=4), rng)
        assert len(readings) == 16
        repeats = [r for r in readings if r.is_repeat]
        assert len(repeats) == 4
        position = {r.reading_id: n for n, r in enumerate(readings)}
        for repeat in repeats:
            first = next(r for r in readings if r.case_id == repeat.case_id)
            assert position[repeat.reading_id] - position[first.reading_id] >= 2
            assert not set(first.image_ids) & set(repeat.image_ids)


def test_more_repeats_than_cases_are_refused(study_of: StudyMaker) -> None:
    with pytest.raises(ProdmError, match="drawn from the 3 of the study, got 4"):
        study_of(3, num_repeats=4)


def test_nothing_that_is_served_names_a_method_or_a_case(study_of: StudyMaker) -> None:
    folder = study_of(4)
    key = read_key(folder / "key")
    words = [*key.method_order, *key.case_names.values()]
    for path in (folder / "served").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for word in words:
            assert word not in path.name
            assert word.encode() not in content


def test_files_of_all_methods_look_alike(study_of: StudyMaker) -> None:
    folder = study_of(4)
    files = list((folder / "served" / "images").iterdir())
    assert len(files) == 12
    assert len({(f.stat().st_size, f.stat().st_mtime, f.stat().st_mode) for f in files}) == 1
    for case in read_study(folder).cases:
        assert list(case.images) == sorted(case.images)


def test_the_key_names_every_image(study_of: StudyMaker) -> None:
    folder = study_of(2)
    key = read_key(folder / "key")
    images = [image for case in read_study(folder).cases for image in case.images]
    assert Counter(key.methods[image] for image in images) == dict.fromkeys(key.method_order, 2)
    assert sorted(key.case_names.values()) == ["patient-0", "patient-1"]


def test_the_key_is_for_its_owner_alone(study_of: StudyMaker) -> None:
    folder = study_of(2)
    assert (folder / "key").stat().st_mode & 0o077 == 0
    assert (folder / "key" / "key.json").stat().st_mode & 0o077 == 0


def test_images_come_back_as_they_were(study_of: StudyMaker) -> None:
    folder = study_of(1)
    key = read_key(folder / "key")
    (case,) = read_study(folder).cases
    noiseless = next(image for image in case.images if key.methods[image] == "original")
    voxels = np.frombuffer(image_path(folder, noiseless).read_bytes(), "<i2").reshape(case.shape)
    assert voxels[3, 8, 10] == 200
    assert (voxels[0] == 0).all()


def test_a_seed_redoes_a_study_and_chance_does_not(study_of: StudyMaker) -> None:
    names = [
        sorted(p.name for p in (study_of(2, seed=s, name=n) / "served" / "images").iterdir())
        for n, s in (("a", 7), ("b", 7), ("c", None), ("d", None))
    ]
    assert names[0] == names[1]
    assert names[2] != names[3]


def test_a_study_with_answers_is_never_replaced(study_of: StudyMaker) -> None:
    folder = study_of(1)
    with AnswerStore(folder) as store:
        reader = store.readers()[0]
        store.comment(reader, store.readings(reader)[0].reading_id, 0, "seen")
    with pytest.raises(ProdmError, match="holds answers of readers"):
        new_study([], folder, StudySettings(), overwrite=True)


def test_readers_can_join_later_and_only_once(study_of: StudyMaker) -> None:
    folder = study_of(3, readers=())
    add_readers(folder, ["Kim", "Kim", " kim "])
    with AnswerStore(folder) as store:
        (reader,) = store.readers()
        assert len(store.readings(reader)) == 3


def test_a_damaged_study_is_refused(study_of: StudyMaker, tmp_path: Path) -> None:
    folder = study_of(1)
    with pytest.raises(ProdmError, match="need a study made by prodm study new"):
        read_study(tmp_path / "nothing")
    image = next((folder / "served" / "images").iterdir())
    whole = image.read_bytes()
    image.write_bytes(whole[:-1])
    with pytest.raises(ProdmError, match="is not whole"):
        read_study(folder)
    image.write_bytes(whole)
    study_file = folder / "served" / "study.json"
    content = json.loads(study_file.read_text())
    content["cases"][0]["images"][0] = "../../key/key.json"
    study_file.write_text(json.dumps(content))
    with pytest.raises(ProdmError, match=r"study\.json is not as written"):
        read_study(folder)


def test_a_wrong_key_is_refused(study_of: StudyMaker, tmp_path: Path) -> None:
    wrong = tmp_path / "key.json"
    for text in ("{}", "[]", "not json"):
        wrong.write_text(text)
        with pytest.raises(ProdmError, match="key of a study"):
            read_key(wrong)
    shutil.rmtree(study_of(1) / "key")
    with pytest.raises(ProdmError, match="is not there"):
        read_key(tmp_path / "study" / "key" / "key.json")
