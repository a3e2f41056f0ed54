"""From all that a browser receives, short of the pictures, the method must not be guessed.

A forest is trained on names, order, headers, sizes and times of the responses of some readers
and asked for the methods of the others. That it could learn, if there were something to learn,
is shown with the size that the same images would have if they were compressed.
"""

import time
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.ensemble import RandomForestClassifier

from prodm.study.blinding import read_key
from prodm.study.server import Access
from prodm.study.store import AnswerStore

NUM_READERS, NUM_CASES, NUM_METHODS = 6, 15, 3


def collect(
    folder: Path, running: Callable[[Path, Access], AbstractContextManager[str]]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.str_], NDArray[np.int_]]:
    """Return features, compressed sizes, true methods and readers, image by image."""
    methods = read_key(folder / "key").methods
    features, leaks, truth, groups = [], [], [], []
    with AnswerStore(folder) as store:
        readers = store.readers()
        records = {r.reader_id: store.readings(r) for r in readers}
    with running(folder, Access()) as url, httpx.Client(base_url=url) as http:
        for reader in readers:
            http.headers["Authorization"] = f"Bearer {reader.token}"
            session = http.get("/api/session").json()
            for position, entry in enumerate(session["cases"]):
                answer = http.get(f"/api/case/{entry['id']}")
                case: dict[str, Any] = answer.json()
                record = records[reader.reader_id][position]
                for slot, image_id in enumerate(case["images"]):
                    started = time.perf_counter()
                    image = http.get(f"/api/image/{image_id}")
                    seconds = time.perf_counter() - started
                    features.append(
                        [
                            position,
                            slot,
                            int(entry["id"][:12], 16),
                            int(image_id[:12], 16),
                            int(image_id[-12:], 16),
                            sorted(case["images"]).index(image_id),
                            len(image.content),
                            len(answer.content),
                            len(str(image.headers)),
                            zlib.crc32(str(sorted(image.headers.items())).encode()),
                            seconds,
                        ]
                    )
                    leaks.append([len(zlib.compress(image.content))])
                    truth.append(methods[record.images[slot]])
                    groups.append(reader.reader_id)
    return np.array(features, float), np.array(leaks, float), np.array(truth), np.array(groups)


def num_right(
    features: NDArray[np.float64], truth: NDArray[np.str_], groups: NDArray[np.int_]
) -> int:
    """Train on half of the readers, guess for the other half, and the other way round."""
    right = 0
    for tested in (groups % 2 == 0, groups % 2 == 1):
        forest = RandomForestClassifier(100, random_state=0).fit(features[~tested], truth[~tested])
        right += int(np.sum(forest.predict(features[tested]) == truth[tested]))
    return right


def test_a_classifier_cannot_tell_the_method_better_than_chance(
    study_of: Callable[..., Path],
    running: Callable[[Path, Access], AbstractContextManager[str]],
) -> None:
    readers = tuple(f"reader {n}" for n in range(NUM_READERS))
    folder = study_of(NUM_CASES, readers=readers, num_repeats=5)
    features, leaks, truth, groups = collect(folder, running)
    total = NUM_READERS * (NUM_CASES + 5) * NUM_METHODS
    assert len(truth) == total

    assert set(features[:, 6]) == {2 * 4 * 16 * 20}  # one size
    assert len(set(features[:, 8])) == len(set(features[:, 9])) == 1  # one set of headers

    chance = stats.binomtest(
        num_right(features, truth, groups), total, 1 / NUM_METHODS, alternative="greater"
    )
    assert chance.pvalue > 1e-4
    informed = num_right(np.hstack([features, leaks]), truth, groups)
    assert informed > 0.9 * total  # compressed images would have told


def test_response_times_do_not_depend_on_the_method(
    study_of: Callable[..., Path],
    running: Callable[[Path, Access], AbstractContextManager[str]],
) -> None:
    readers = tuple(f"reader {n}" for n in range(NUM_READERS))
    features, _, truth, _ = collect(study_of(NUM_CASES, readers=readers), running)
    by_method = [features[truth == method, -1] for method in np.unique(truth)]
    assert stats.kruskal(*by_method).pvalue > 1e-4
