"""Small made-up studies, and servers that run them."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from prodm.study.cases import CasePatches
from prodm.study.making import StudySettings, new_study
from prodm.study.server import Access, bind, make_app, web_server
from prodm.study.store import AnswerStore
from prodm.volume import Grid

METHODS = ("original", "unet", "prodm")

StudyMaker = Callable[..., Path]


def made_up_case(name: str, methods: tuple[str, ...], number: int) -> CasePatches:
    """A bright spot in noise; each method has a look, and a number of bits, of its own."""
    rng = np.random.default_rng(number)
    z, y, x = np.mgrid[:4, :16, :20]
    spot = 600 * np.exp(-((y - 8) ** 2 + (x - 10) ** 2) / 8) * z / 3
    patches = {
        method: np.rint(spot * (n + 1) / len(methods) + rng.normal(0, 30 * n, spot.shape)).astype(
            np.int16
        )
        for n, method in enumerate(methods)
    }
    return CasePatches(name, Grid((4, 16, 20), (3.0, 0.5, 0.5)), patches)


def _make_study(
    folder: Path,
    num_cases: int,
    methods: tuple[str, ...],
    settings: StudySettings,
) -> Path:
    cases = [made_up_case(f"patient-{n}", methods, n) for n in range(num_cases)]
    new_study(cases, folder, settings)
    return folder


@pytest.fixture
def study_of(tmp_path: Path) -> StudyMaker:
    def make(
        num_cases: int = 3,
        *,
        methods: tuple[str, ...] = METHODS,
        readers: tuple[str, ...] = ("Lee", "Roy"),
        num_repeats: int = 0,
        seed: int | None = None,
        name: str = "study",
    ) -> Path:
        settings = StudySettings("Made-up study", readers, num_repeats, seed)
        return _make_study(tmp_path / name, num_cases, methods, settings)

    return make


@pytest.fixture(scope="module")
def shared_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six cases, two of them twice, for two readers; the tests of a module share it."""
    settings = StudySettings("Made-up study", ("Lee", "Roy"), num_repeats=2)
    return _make_study(tmp_path_factory.mktemp("shared") / "study", 6, METHODS, settings)


@contextmanager
def _running(folder: Path, access: Access) -> Iterator[str]:
    """Serve a study from a thread of this process; give its address."""
    with AnswerStore(folder) as store:
        listener = bind(access.host, 0)
        port = listener.getsockname()[1]
        server = web_server(make_app(folder, store, access))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def running() -> Callable[[Path, Access], Any]:
    return _running


class Client:
    """A reader's browser without the page."""

    def __init__(self, url: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=30)

    def get(self, path: str) -> httpx.Response:
        return self.http.get(path)

    def json(self, path: str) -> Any:  # noqa: ANN401
        response = self.http.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    def put(self, case_id: str, **change: Any) -> httpx.Response:  # noqa: ANN401
        return self.http.put(f"/api/case/{case_id}", json=change)

    def fill(self, case_id: str, scores: list[int], ranking: list[int]) -> None:
        """Answer a whole case, the same score for all criteria of a slot."""
        version = self.json(f"/api/case/{case_id}")["version"]
        for criterion in ("motion_suppression", "clinical_usability", "vessel_fidelity"):
            for slot, score in enumerate(scores):
                rating = {"slot": slot, "criterion": criterion, "score": score}
                answer = self.put(case_id, version=version, rating=rating)
                assert answer.status_code == 200, answer.text
                version = answer.json()["version"]
        assert self.put(case_id, version=version, ranking=ranking).status_code == 200


@pytest.fixture
def sign_in() -> Iterator[Callable[[str, str], Client]]:
    clients: list[Client] = []

    def open_session(url: str, name: str) -> Client:
        answer = httpx.post(f"{url}/api/open", json={"name": name})
        assert answer.status_code == 200, answer.text
        clients.append(Client(url, answer.json()["token"]))
        return clients[-1]

    yield open_session
    for client in clients:
        client.http.close()


class ServerProcess:
    """``prodm study serve`` in a process of its own, which can be killed."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.arguments = arguments
        self.port = "0"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "prodm", "study", "serve", str(self.folder), "--json"]
        self.process = subprocess.Popen(
            [*command, "--port", self.port, *self.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONWARNINGS": "error"},
        )
        assert self.process.stdout is not None
        self.addresses: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.url: str = self.addresses["url"]
        self.port = self.url.rstrip("/").rpartition(":")[2]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def serve_process() -> Iterator[Callable[..., ServerProcess]]:
    started: list[ServerProcess] = []

    def start(folder: Path, *arguments: str) -> ServerProcess:
        started.append(ServerProcess(folder, *arguments))
        return started[-1]

    yield start
    for server in started:
        server.kill()
