"""What stands before every request: who may ask, how much, and from where.

- Host: only names that this machine has. A page elsewhere that points its own name at
  127.0.0.1 (DNS rebinding) is refused, because the browser sends that name.
- Origin: a request that comes from another site is refused (CSRF). Sessions are a header, not
  a cookie, so another site could not act for a reader anyway.
- Size and time: bodies are small and arrive soon, or the answer is 413 or 408.
- Every response forbids the browser to load, embed or keep anything.
"""

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 16 * 1024
BODY_TIMEOUT_S = 10.0
METHODS_WITH_BODY = ("POST", "PUT")
ALLOWED_METHODS = ("GET", "HEAD", *METHODS_WITH_BODY)
RESPONSE_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        b" connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class RefusedError(Exception):
    """The request is not served."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Guard:
    """An ASGI layer around the application. ``names`` are the host names to answer to."""

    def __init__(self, app: App, names: frozenset[str], *, any_address: bool) -> None:
        self.app = app
        self.names = names
        self.any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then pass it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *RESPONSE_HEADERS]
            await send(message)

        try:
            headers = _headers(scope)
            self._check_sender(headers)
            if scope["method"] not in ALLOWED_METHODS:
                raise RefusedError(405, "only GET, POST and PUT are answered")
            body = b""
            if scope["method"] in METHODS_WITH_BODY:
                _check_announced(headers)
                try:
                    body = await asyncio.wait_for(_read_body(receive), BODY_TIMEOUT_S)
                except TimeoutError:
                    raise RefusedError(408, "the request took too long to arrive") from None
        except RefusedError as refusal:
            await _answer(send_with_headers, refusal)
            return
        await self.app(scope, _replay(body, receive), send_with_headers)

    def _check_sender(self, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        if not self._is_ours(_hostname(host)):
            raise RefusedError(421, "this server does not answer to that host name")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise RefusedError(403, "requests from other sites are refused")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise RefusedError(403, "requests from other sites are refused")

    def _is_ours(self, name: str) -> bool:
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_address or address.is_loopback


def _headers(scope: Scope) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        if key in headers and key in ("host", "origin", "authorization", "content-length"):
            raise RefusedError(400, f"the header {key} came twice")
        headers[key] = value.decode("latin-1")
    return headers


def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _check_announced(headers: dict[str, str]) -> None:
    length = headers.get("content-length", "0")
    if not length.isdecimal():
        raise RefusedError(400, "the length of the request is not a number")
    if int(length) > MAX_BODY_BYTES:
        raise RefusedError(413, "the request is too large")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, "requests are written in JSON")


async def _read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedError(400, "the request was cut off")
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise RefusedError(413, "the request is too large")
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


async def _answer(send: Send, refusal: RefusedError) -> None:
    body = json.dumps({"error": str(refusal)}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
