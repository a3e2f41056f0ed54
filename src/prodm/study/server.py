"""The study in the browser.

The page is plain HTML, CSS and JavaScript from this package. It asks for a reader's cases,
fetches the images as int16 HU, windows them itself, and sends every click at once.

    GET  /  /style.css  /*.js        the page, read once at the start; no other file is served
    GET  /api/study                  title, and whether a token is needed
    POST /api/open                   name or token -> the reader's token
    GET  /api/session                the reader's cases and what is done
    GET  /api/case/{id}              one reading: its images and answers
    PUT  /api/case/{id}              one change to its answers
    GET  /api/image/{id}             int16 HU, little-endian, slices from feet to head
    POST /api/finish                 close the reader's answers

The server reads ``STUDY/served`` and never the key: it runs as well where the key is not.
"""

import ipaddress
import socket
import sqlite3
import ssl
import unicodedata
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as AnyHTTPException

from prodm.errors import ProdmError
from prodm.study.blinding import image_path, page_settings, read_study
from prodm.study.criteria import CRITERION_NAMES
from prodm.study.guard import App, Guard
from prodm.study.records import Answers, Reader
from prodm.study.store import (
    AnswerStore,
    FinishedError,
    IncompleteError,
    StaleVersionError,
)

if TYPE_CHECKING:
    import uvicorn

PAGE = Path(__file__).parent / "page"
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/answers.js": ("answers.js", "text/javascript; charset=utf-8"),
    "/viewer.js": ("viewer.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
MAX_COMMENT_LENGTH = 2000
NAMES_OF_THIS_MACHINE = frozenset({"localhost"})


class Strict(BaseModel):
    """A request body: known fields of the right type, nothing else."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Opening(Strict):
    """Who wants to read: by token, or by name where that is enough."""

    token: Annotated[str, Field(max_length=200)] | None = None
    name: Annotated[str, Field(max_length=200)] | None = None


class RatingChange(Strict):
    """One score of one method."""

    slot: Annotated[int, Field(ge=0)]
    criterion: Annotated[str, Field(max_length=40)]
    score: Annotated[int, Field(ge=1, le=5)]


class Change(Strict):
    """One change to the answers of a reading, made on ``version``."""

    version: Annotated[int, Field(ge=0)]
    rating: RatingChange | None = None
    ranking: Annotated[list[int | None], Field(max_length=16)] | None = None
    comment: Annotated[str, Field(max_length=MAX_COMMENT_LENGTH)] | None = None


class Nothing(Strict):
    """An empty object."""


@dataclass(frozen=True)
class Access:
    """Who may open the page, and under which names it answers."""

    host: str = "127.0.0.1"
    public_names: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the page; then a name is enough."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def shown_host(self) -> str:
        """The name to put into an address."""
        if self.host in ("0.0.0.0", "::"):
            return socket.gethostname()
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def names(self) -> frozenset[str]:
        """Host names to answer to, besides addresses."""
        if self.is_local:
            return NAMES_OF_THIS_MACHINE | {name.lower() for name in self.public_names}
        own = {socket.gethostname().lower(), socket.getfqdn().lower(), self.host.lower()}
        return NAMES_OF_THIS_MACHINE | own | {name.lower() for name in self.public_names}


def make_app(folder: Path, store: AnswerStore, access: Access) -> App:
    """Build the application for one study."""
    study = read_study(folder)
    settings = page_settings(study)
    pages = {url: (PAGE / name).read_bytes() for url, (name, _) in PAGE_FILES.items()}
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

    def signed_in(authorization: str | None) -> Reader:
        scheme, _, token = (authorization or "").partition(" ")
        reader = store.reader_by_token(token) if scheme == "Bearer" else None
        if reader is None:
            raise HTTPException(401, "please sign in")
        return reader

    Authorization = Annotated[str | None, Header()]  # noqa: N806

    def add_page(url: str, media_type: str) -> None:
        @app.get(url)
        def page() -> Response:
            return Response(pages[url], media_type=media_type)

    for url, (_, media_type) in PAGE_FILES.items():
        add_page(url, media_type)

    @app.get("/api/study")
    def get_study() -> dict[str, Any]:
        names = [reader.name for reader in store.readers()] if access.is_local else []
        return {"title": study.title, "needs_token": not access.is_local, "readers": names}

    @app.post("/api/open")
    def open_session(opening: Opening) -> dict[str, Any]:
        reader = None
        if opening.token is not None:
            reader = store.reader_by_token(opening.token)
        elif opening.name is not None and access.is_local:
            reader = store.reader_by_name(opening.name)
        if reader is None:
            what = "name or token" if access.is_local else "token"
            raise HTTPException(401, f"The study has no reader with this {what}.")
        return {"token": reader.token, "name": reader.name}

    @app.get("/api/session")
    def get_session(authorization: Authorization = None) -> dict[str, Any]:
        reader = signed_in(authorization)
        cases = [
            {"id": record.reading_id, "state": _state(record.answers)}
            for record in store.readings(reader)
        ]
        return {
            **settings,
            "reader": reader.name,
            "finished": reader.finished_at is not None,
            "cases": cases,
        }

    @app.get("/api/case/{reading_id}")
    def get_case(reading_id: str, authorization: Authorization = None) -> dict[str, Any]:
        reader = signed_in(authorization)
        record = store.reading(reader, reading_id)
        if record is None:
            raise HTTPException(404, "there is no such case")
        case = study.case(record.case_id)
        return {
            "id": record.reading_id,
            "shape": case.shape,
            "spacing_mm": case.spacing_mm,
            "images": record.image_ids,
            **_answers(record.answers),
        }

    @app.get("/api/image/{image_id}")
    def get_image(image_id: str, authorization: Authorization = None) -> Response:
        found = store.image_of(signed_in(authorization), image_id)
        if found is None:
            raise HTTPException(404, "there is no such image")
        image, _ = found
        return Response(
            image_path(folder, image).read_bytes(), media_type="application/octet-stream"
        )

    @app.put("/api/case/{reading_id}")
    def change_case(
        reading_id: str, change: Change, authorization: Authorization = None
    ) -> JSONResponse:
        reader = signed_in(authorization)
        try:
            answers = _apply(store, reader, reading_id, change)
        except KeyError:
            raise HTTPException(404, "there is no such case") from None
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        except FinishedError:
            raise HTTPException(410, "You have finished; answers can no longer change.") from None
        except StaleVersionError:
            record = store.reading(reader, reading_id)
            assert record is not None
            return JSONResponse({"error": "stale", **_answers(record.answers)}, status_code=409)
        return JSONResponse(_answers(answers))

    @app.post("/api/finish")
    def finish(_: Nothing, authorization: Authorization = None) -> dict[str, Any]:
        reader = signed_in(authorization)
        try:
            store.finish(reader)
        except IncompleteError:
            raise HTTPException(422, "Some answers are still missing.") from None
        except FinishedError:
            pass
        return {"finished": True}

    _explain_errors(app)
    return Guard(app, access.names, any_address=not access.is_local)


def _explain_errors(app: FastAPI) -> None:
    """Answer every error in one shape, and echo nothing of what was sent."""

    @app.exception_handler(AnyHTTPException)
    async def plain(_: Request, error: AnyHTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail)}, status_code=error.status_code)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, __: RequestValidationError) -> JSONResponse:
        return JSONResponse({"error": "the request is malformed"}, status_code=422)

    @app.exception_handler(sqlite3.OperationalError)
    async def not_saved(_: Request, __: sqlite3.OperationalError) -> JSONResponse:
        return JSONResponse({"error": "the answer could not be saved"}, status_code=503)


def _apply(store: AnswerStore, reader: Reader, reading_id: str, change: Change) -> Answers:
    given = [change.rating is not None, change.ranking is not None, change.comment is not None]
    if sum(given) != 1:
        raise ValueError("a change is one rating, one ranking or one comment")
    if change.rating is not None:
        rating = change.rating
        if rating.criterion not in CRITERION_NAMES:
            raise ValueError("no such criterion")
        return store.rate(
            reader, reading_id, change.version, rating.slot, rating.criterion, rating.score
        )
    if change.ranking is not None:
        return store.rank(reader, reading_id, change.version, change.ranking)
    text = change.comment or ""
    if any(unicodedata.category(letter) == "Cc" and letter not in "\n\t" for letter in text):
        raise ValueError("a comment holds no control characters")
    return store.comment(reader, reading_id, change.version, text)


def _state(answers: Answers) -> Literal["empty", "partial", "complete"]:
    if answers.is_complete:
        return "complete"
    return "empty" if answers.is_empty else "partial"


def _answers(answers: Answers) -> dict[str, Any]:
    return {**asdict(answers), "state": _state(answers)}


def bind(host: str, port: int) -> socket.socket:
    """Take the address, so that a port in use is a sentence and not a stack of calls."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)  # a browser that is quicker than the start-up waits in line
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ProdmError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; "
            "choose another --port or --host"
        ) from error
    return listener


def web_server(
    app: App, certificate: Path | None = None, private_key: Path | None = None
) -> "uvicorn.Server":
    """Wrap the application in a server that says nothing of itself."""
    import uvicorn

    if certificate is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                certificate, private_key
            )
        except (OSError, ssl.SSLError) as error:
            raise ProdmError(
                f"{certificate} and {private_key} are not a certificate and its key in PEM"
            ) from error
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        ws="none",
        ssl_certfile=certificate,
        ssl_keyfile=private_key,
        timeout_graceful_shutdown=3,
    )
    return uvicorn.Server(config)
