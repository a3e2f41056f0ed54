"""The server must save what was clicked, and refuse everything that no page of ours sends."""

import http.client
import json
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from prodm.errors import ProdmError
from prodm.study.criteria import CRITERION_NAMES
from prodm.study.guard import MAX_BODY_BYTES
from prodm.study.server import PAGE_FILES, Access, bind
from prodm.study.store import AnswerStore

StudyMaker = Callable[..., Path]
Running = Callable[[Path, Access], AbstractContextManager[str]]
SignIn = Callable[[str, str], Any]
LOCAL = Access()


def raw(url: str, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    """Send a request exactly as given: nothing is added, no path tidied."""
    address = url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.putrequest(method, path, skip_host="host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    if body and "content_length" not in headers:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


def test_a_reader_can_do_a_whole_study(
    study_of: StudyMaker, running: Running, sign_in: SignIn
) -> None:
    folder = study_of(2)
    shutil.rmtree(folder / "key")  # the server has no need of it
    with running(folder, LOCAL) as url:
        client = sign_in(url, "lee")
        session = client.json("/api/session")
        assert session["reader"] == "Lee"
        assert [case["state"] for case in session["cases"]] == ["empty", "empty"]
        for case in session["cases"]:
            content = client.json(f"/api/case/{case['id']}")
            for image in content["images"]:
                assert len(client.get(f"/api/image/{image}").content) == 2 * 4 * 16 * 20
            client.fill(case["id"], [5, 3, 1], [1, 2, 3])
        assert client.http.post("/api/finish", json={}).json() == {"finished": True}
        assert client.json("/api/session")["finished"]
        again = client.put(case["id"], version=10, comment="late")
        assert again.status_code == 410
    with AnswerStore(folder) as store:
        lee, _ = store.readers()
        for record in store.readings(lee):
            assert record.answers.ranking == (1, 2, 3)
            assert record.answers.ratings == tuple(
                dict.fromkeys(CRITERION_NAMES, score) for score in (5, 3, 1)
            )


def test_finishing_too_early_is_refused(
    study_of: StudyMaker, running: Running, sign_in: SignIn
) -> None:
    with running(study_of(1), LOCAL) as url:
        answer = sign_in(url, "Lee").http.post("/api/finish", json={})
        assert answer.status_code == 422
        assert answer.json() == {"error": "Some answers are still missing."}


def test_a_stale_tab_gets_the_present_answers(
    study_of: StudyMaker, running: Running, sign_in: SignIn
) -> None:
    with running(study_of(1), LOCAL) as url:
        client = sign_in(url, "Lee")
        case = client.json("/api/session")["cases"][0]["id"]
        assert client.put(case, version=0, comment="first tab").status_code == 200
        stale = client.put(case, version=0, comment="second tab")
        assert stale.status_code == 409
        assert stale.json()["comment"] == "first tab"
        assert stale.json()["version"] == 1


def test_two_hundred_requests_at_once_lose_no_rating(
    study_of: StudyMaker, running: Running
) -> None:
    names = tuple(f"reader {n}" for n in range(20))
    folder = study_of(10, readers=names)
    with AnswerStore(folder) as store:
        wanted = [
            (reader, record.reading_id, (reader.reader_id + n) % 5 + 1)
            for reader in store.readers()
            for n, record in enumerate(store.readings(reader))
        ]
    # A connection for each, kept to the end: a pool that closes some meanwhile may take one away
    # from a thread that it was just given to.
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
    with (
        running(folder, LOCAL) as url,
        httpx.Client(base_url=url, timeout=60, limits=limits) as http,
    ):

        def send(job: tuple[Any, str, int]) -> int:
            reader, reading_id, score = job
            rating = {"slot": 0, "criterion": "vessel_fidelity", "score": score}
            headers = {"Authorization": f"Bearer {reader.token}"}
            body = {"version": 0, "rating": rating}
            return http.put(f"/api/case/{reading_id}", json=body, headers=headers).status_code

        with ThreadPoolExecutor(200) as pool:
            assert list(pool.map(send, wanted)) == [200] * 200
    with AnswerStore(folder) as store:
        for reader, reading_id, score in wanted:
            record = store.reading(reader, reading_id)
            assert record
            assert record.answers.ratings[0]["vessel_fidelity"] == score
        assert len(store.events()) == 200


def test_of_two_hundred_clicks_on_one_version_exactly_one_wins(
    study_of: StudyMaker, running: Running, sign_in: SignIn
) -> None:
    folder = study_of(1)
    with running(folder, LOCAL) as url:
        client = sign_in(url, "Lee")
        case = client.json("/api/session")["cases"][0]["id"]
        with ThreadPoolExecutor(50) as pool:
            answers = list(
                pool.map(lambda n: client.put(case, version=0, comment=f"tab {n}"), range(200))
            )
        winners = [answer for answer in answers if answer.status_code == 200]
        assert len(winners) == 1
        assert sum(answer.status_code == 409 for answer in answers) == 199
        assert client.json(f"/api/case/{case}")["comment"] == winners[0].json()["comment"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_origin_can_neither_write_nor_read(
    study_of: StudyMaker, running: Running, sign_in: SignIn, headers: dict[str, str]
) -> None:
    with running(study_of(1), LOCAL) as url:
        client = sign_in(url, "Lee")
        case = client.json("/api/session")["cases"][0]["id"]
        body = {"version": 0, "comment": "from elsewhere"}
        assert client.http.put(f"/api/case/{case}", json=body, headers=headers).status_code == 403
        assert client.http.get("/api/session", headers=headers).status_code == 403
        assert client.json(f"/api/case/{case}")["comment"] == ""


def test_a_form_of_another_site_cannot_write(study_of: StudyMaker, running: Running) -> None:
    with running(study_of(1), LOCAL) as url:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            body = b'{"name": "Lee"}'
            assert raw(url, "POST", "/api/open", body, Content_Type=kind)[0] == 415


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_rebound_host_name_is_refused(study_of: StudyMaker, running: Running, host: str) -> None:
    with running(study_of(1), LOCAL) as url:
        assert raw(url, "GET", "/", host=host)[0] == 421
        assert raw(url, "GET", "/api/study", host=host)[0] == 421


def test_local_names_are_answered(study_of: StudyMaker, running: Running) -> None:
    with running(study_of(1), LOCAL) as url:
        for host in ("localhost", "localhost:9000", "127.0.0.1", "[::1]:8000"):
            assert raw(url, "GET", "/api/study", host=host)[0] == 200


def test_a_preflight_gets_no_permission(study_of: StudyMaker, running: Running) -> None:
    with running(study_of(1), LOCAL) as url:
        answer = httpx.options(
            f"{url}/api/open",
            headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"},
        )
        assert answer.status_code in (403, 405)
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "path",
    [
        "/../key/key.json",
        "/../../key/key.json",
        "/key/key.json",
        "/served/answers.sqlite",
        "/answers.sqlite",
        "/study.json",
        "/%2e%2e/key/key.json",
        "/..%2fkey%2fkey.json",
        "/page/../../key/key.json",
        "/api/image/../../key/key.json",
        "/api/image/..%2F..%2Fkey%2Fkey.json",
        "/api/image/%00",
        "/api/case/..%2f..%2fkey",
        "//etc/passwd",
        "/server.py",
        "/docs",
        "/openapi.json",
        "/app.js/../../server.py",
    ],
)
def test_paths_cannot_escape(
    study_of: StudyMaker, running: Running, sign_in: SignIn, path: str
) -> None:
    folder = study_of(1)
    with running(folder, LOCAL) as url:
        token = sign_in(url, "Lee").http.headers["Authorization"]
        status, content = raw(url, "GET", path, Authorization=token)
        assert 400 <= status < 500
        assert b"original" not in content
        assert b"def " not in content


def test_an_image_opens_by_its_shown_name_only(
    study_of: StudyMaker, running: Running, sign_in: SignIn
) -> None:
    folder = study_of(1)
    stored = next((folder / "served" / "images").iterdir()).stem
    with running(folder, LOCAL) as url:
        lee, roy = sign_in(url, "Lee"), sign_in(url, "Roy")
        case = lee.json("/api/session")["cases"][0]["id"]
        shown = lee.json(f"/api/case/{case}")["images"][0]
        assert lee.get(f"/api/image/{shown}").status_code == 200
        assert lee.get(f"/api/image/{stored}").status_code == 404
        assert roy.get(f"/api/image/{shown}").status_code == 404
        assert roy.get(f"/api/case/{case}").status_code == 404
        assert roy.put(case, version=0, comment="not mine").status_code == 404


def test_nothing_opens_without_signing_in(study_of: StudyMaker, running: Running) -> None:
    with running(study_of(1), LOCAL) as url, httpx.Client(base_url=url) as http:
        for bad in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic TGVlOg=="}):
            for path in ("/api/session", "/api/case/x", "/api/image/x"):
                assert http.get(path, headers=bad).status_code == 401
            assert http.put("/api/case/x", json={"version": 0}, headers=bad).status_code == 401
            assert http.post("/api/finish", json={}, headers=bad).status_code == 401
        for body in ({"name": "Nobody"}, {"token": "wrong"}, {}, {"name": ""}):
            assert http.post("/api/open", json=body).status_code == 401


def test_beyond_this_machine_a_name_is_not_enough(study_of: StudyMaker, running: Running) -> None:
    folder = study_of(1)
    with AnswerStore(folder) as store:
        lee = store.readers()[0]
    access = Access("0.0.0.0", ("study.hospital.example",))
    with running(folder, access) as url, httpx.Client(base_url=url) as http:
        study = http.get("/api/study").json()
        assert study["needs_token"]
        assert study["readers"] == []
        assert http.post("/api/open", json={"name": "Lee"}).status_code == 401
        assert http.post("/api/open", json={"token": lee.token}).json()["name"] == "Lee"
        assert raw(url, "GET", "/", host="study.hospital.example")[0] == 200
        assert raw(url, "GET", "/", host="192.168.7.7:8427")[0] == 200
        assert raw(url, "GET", "/", host="evil.example")[0] == 421


def malformed_bodies() -> list[bytes]:
    rating: dict[str, Any] = {"slot": 0, "criterion": "vessel_fidelity", "score": 3}
    wrong: list[Any] = [
        {},
        [],
        None,
        7,
        {"version": 0},
        {"version": "0", "comment": "x"},
        {"version": -1, "comment": "x"},
        {"version": True, "comment": "x"},
        {"version": 0, "comment": 5},
        {"version": 0, "comment": "x", "extra": 1},
        {"version": 0, "comment": "x", "ranking": [1, 2, 3]},
        {"version": 0, "comment": "x" * 2001},
        {"version": 0, "comment": "bell \x07"},
        {"version": 0, "ranking": [1, 2]},
        {"version": 0, "ranking": [1, 1, 1]},
        {"version": 0, "ranking": [1, 2, 2**70]},
        {"version": 0, "ranking": ["1", 2, 3]},
        {"version": 0, "rating": rating | {"score": 0}},
        {"version": 0, "rating": rating | {"score": 6}},
        {"version": 0, "rating": rating | {"score": 3.5}},
        {"version": 0, "rating": rating | {"score": "3"}},
        {"version": 0, "rating": rating | {"slot": 3}},
        {"version": 0, "rating": rating | {"slot": -1}},
        {"version": 0, "rating": rating | {"slot": 10**30}},
        {"version": 0, "rating": rating | {"criterion": "'; DROP TABLE ratings; --"}},
        {"version": 2**70, "comment": "x"},
    ]
    return [json.dumps(body).encode() for body in wrong] + [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"version": 0, "comment": "\\ud800"}',
        b'{"version": NaN, "comment": "x"}',
        b"[" * 8000,
        b"9" * 8000,
    ]


def test_malformed_requests_get_4xx_and_change_nothing(
    study_of: StudyMaker, running: Running, sign_in: SignIn
) -> None:
    folder = study_of(1)
    with running(folder, LOCAL) as url:
        client = sign_in(url, "Lee")
        case = client.json("/api/session")["cases"][0]["id"]
        for body in malformed_bodies():
            answer = client.http.put(
                f"/api/case/{case}", content=body, headers={"Content-Type": "application/json"}
            )
            assert 400 <= answer.status_code < 500, (body[:80], answer.text)
            assert set(answer.json()) <= {"error", *client.json(f"/api/case/{case}")}
        assert client.json(f"/api/case/{case}")["version"] == 0
    with AnswerStore(folder) as store:
        assert store.events() == []


def test_oversized_requests_get_413(
    study_of: StudyMaker, running: Running, sign_in: SignIn
) -> None:
    with running(study_of(1), LOCAL) as url:
        client = sign_in(url, "Lee")
        large = b" " * (MAX_BODY_BYTES + 1)
        json_type = {"Content-Type": "application/json"}
        assert client.http.put("/api/case/x", content=large, headers=json_type).status_code == 413
        pieces = (b" " * 1024 for _ in range(64))  # chunked, with no length announced
        answer = client.http.post("/api/open", content=pieces, headers=json_type)
        assert answer.status_code == 413
        status, _ = raw(
            url, "POST", "/api/open", content_length="1e3", Content_Type="application/json"
        )
        assert status == 400


def test_a_request_that_never_ends_is_cut_off(
    study_of: StudyMaker, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prodm.study.guard.BODY_TIMEOUT_S", 0.2)
    with running(study_of(1), LOCAL) as url:
        status, _ = raw(
            url, "POST", "/api/open", b"{", content_length="100", Content_Type="application/json"
        )
        assert status == 408


def test_other_methods_are_refused(study_of: StudyMaker, running: Running) -> None:
    with running(study_of(1), LOCAL) as url:
        for method in ("DELETE", "PATCH", "TRACE", "OPTIONS"):
            assert raw(url, method, "/api/session")[0] == 405
        assert raw(url, "POST", "/", b"{}", Content_Type="application/json")[0] == 405


def test_every_response_locks_the_page_down(
    study_of: StudyMaker, running: Running, sign_in: SignIn
) -> None:
    with running(study_of(1), LOCAL) as url:
        client = sign_in(url, "Lee")
        for path in (*PAGE_FILES, "/api/study", "/api/session", "/nothing"):
            headers = client.get(path).headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert headers["cross-origin-resource-policy"] == "same-origin"


def test_the_page_loads_nothing_from_outside() -> None:
    page = Path(__file__).parents[2] / "src" / "prodm" / "study" / "page"
    for path in page.iterdir():
        text = path.read_text()
        urls = [word for word in ("http://", "https://", "//cdn", "@import") if word in text]
        allowed = {"http://"} if path.suffix == ".svg" else set()  # its XML namespace
        assert set(urls) <= allowed, path
    html = (page / "index.html").read_text()
    assert "<style" not in html
    assert "onclick" not in html


def test_a_full_disk_is_said_and_the_server_lives_on(
    study_of: StudyMaker, running: Running, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    with running(study_of(1), LOCAL) as url:
        client = sign_in(url, "Lee")
        case = client.json("/api/session")["cases"][0]["id"]

        def full(*_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        with monkeypatch.context() as patch:
            patch.setattr("prodm.study.store._log", full)
            answer = client.put(case, version=0, comment="kept by the page")
            assert answer.status_code == 503
        assert client.put(case, version=0, comment="kept by the page").status_code == 200


def test_a_port_in_use_is_a_sentence() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ProdmError, match="choose another --port or --host"),
    ):
        bind("127.0.0.1", taken.getsockname()[1])
