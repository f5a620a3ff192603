"""Servers on loopback that speak the providers' wire formats, as a script of the test has it.

A script is a function from what was asked, and how many had been asked before, to a reply: an answer with its
usage, or a bad day. It is the same for both formats.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

from search.records.model_calls import Usage


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request: the body as it came, the headers by their lower-case names, and what both formats have."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    model: str
    system: str
    prompt: str
    schema: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a server does. An answer has `text`, `usage` (None: not told), the part of the output that was
    `thought_tokens`, and `finish` in the provider's words; `body` replaces it, as does an error's `status`.
    `hang_up` resets the connection before anything is said, or ends it within the body, which has a length or
    comes in chunks."""

    text: str = ""
    thought: str = ""
    refusal: str | None = None
    usage: Usage | None = field(default_factory=lambda: Usage(input_tokens=100, output_tokens=20))
    thought_tokens: int = 0
    finish: str | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: object = None
    delay_s: float = 0.0
    hang_up: Literal["before", "within", "between chunks"] | None = None


Script = Callable[[Asked, int], Reply]


@dataclass(frozen=True, kw_only=True)
class WireFormat:
    """How a provider has questions and answers: `base` is the path in its base URL."""

    base: str
    ask: Callable[[str, Mapping[str, str], dict[str, Any]], Asked]
    answer: Callable[[Reply], dict[str, Any]]


def _openai_asked(path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Asked:
    assert path == "/v1/chat/completions", path
    by_role = {message["role"]: message["content"] for message in body["messages"]}
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
    return Asked(
        path=path,
        headers=headers,
        body=body,
        model=body["model"],
        system=by_role["system"],
        prompt=by_role["user"],
        schema=schema,
    )


def _openai_answer(reply: Reply) -> dict[str, Any]:
    message = {"role": "assistant", "content": reply.text or None, "refusal": reply.refusal}
    answer: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "served",
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish or "stop"}],
    }
    if (usage := reply.usage) is not None:
        answer["usage"] = {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": reply.thought_tokens},
        }
    return answer


def _response_asked(path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Asked:
    assert path == "/v1/responses", path
    return Asked(
        path=path,
        headers=headers,
        body=body,
        model=body["model"],
        system=body["instructions"],
        prompt=body["input"],
        schema=body.get("text", {}).get("format", {}).get("schema"),
    )


def _response_answer(reply: Reply) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if reply.text:
        parts.append({"type": "output_text", "text": reply.text, "annotations": []})
    if reply.refusal:
        parts.append({"type": "refusal", "refusal": reply.refusal})
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": reply.thought}],
    }
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": parts}
    answer: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "served",
        "status": "incomplete" if reply.finish else "completed",
        "error": None,
        "incomplete_details": {"reason": reply.finish} if reply.finish else None,
        "output": [thought, message] if reply.thought else [message],
    }
    if (usage := reply.usage) is not None:
        answer["usage"] = {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": reply.thought_tokens},
            "total_tokens": usage.tokens,
        }
    return answer


def _gemini_asked(path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Asked:
    version, models, call = path.strip("/").split("/")
    model, _, method = call.partition(":")
    assert (version, models, method) in (
        ("v1", "models", "generateContent"),
        ("v1beta", "models", "generateContent"),
    ), path
    return Asked(
        path=path,
        headers=headers,
        body=body,
        model=model,
        system=body["systemInstruction"]["parts"][0]["text"],
        prompt=body["contents"][0]["parts"][0]["text"],
        schema=body.get("generationConfig", {}).get("responseJsonSchema"),
    )


def _gemini_answer(reply: Reply) -> dict[str, Any]:
    parts = [{"text": reply.thought, "thought": True}] if reply.thought else []
    if reply.text:
        parts.append({"text": reply.text})
    content = {"role": "model", "parts": parts}
    answer: dict[str, Any] = {
        "candidates": [{"index": 0, "content": content, "finishReason": reply.finish or "STOP"}]
    }
    if reply.refusal:
        answer = {"promptFeedback": {"blockReason": reply.refusal}}
    if (usage := reply.usage) is not None:
        answer["usageMetadata"] = {
            "promptTokenCount": usage.input_tokens,
            "cachedContentTokenCount": usage.cached_tokens,
            "candidatesTokenCount": usage.output_tokens - reply.thought_tokens,
            "thoughtsTokenCount": reply.thought_tokens,
            "totalTokenCount": usage.tokens,
        }
    return answer


OPENAI = WireFormat(base="/v1", ask=_openai_asked, answer=_openai_answer)
RESPONSES = WireFormat(base="/v1", ask=_response_asked, answer=_response_answer)
GEMINI = WireFormat(base="", ask=_gemini_asked, answer=_gemini_answer)


class ModelServer:
    """A server of one format. `asked` has the requests in their order, `most_at_once` how many were under way
    at a time. Leaving it raises what went wrong in the script."""

    def __init__(self, wire: WireFormat, script: Script) -> None:
        self.asked: list[Asked] = []
        self.most_at_once = 0
        self._wire, self._script = wire, script
        self._at_once = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._wrong: list[Exception] = []

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if error is None and self._wrong:
            raise self._wrong[0]

    @property
    def base_url(self) -> str:
        """For the SDK."""
        return f"http://127.0.0.1:{self._server.server_port}{self._wire.base}"

    def reply(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """What the script has for a request, after its delay, with the body that is to be sent."""
        try:
            asked = self._wire.ask(path, headers, json.loads(body))
            with self._lock:
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
                before = len(self.asked)
                self.asked.append(asked)
            try:
                reply = self._script(asked, before)
                self._closing.wait(reply.delay_s)
            finally:
                with self._lock:
                    self._at_once -= 1
        except Exception as error:  # it would end a thread that nobody looks at
            self._wrong.append(error)
            return Reply(status=500, body=f"the script failed: {error}")
        return reply

    def body(self, reply: Reply) -> bytes:
        """As it goes over the wire."""
        said = self._wire.answer(reply) if reply.body is None else reply.body
        if isinstance(said, bytes):
            return said
        return (said if isinstance(said, str) else json.dumps(said)).encode()


class _Server(ThreadingHTTPServer):
    request_queue_size = 256  # of connections that come at once
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: a client may end a connection at any time."""


def _handler(model: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept, as the SDKs expect
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            received = self.rfile.read(int(headers.get("content-length", 0)))
            reply = model.reply(self.path, headers, received)
            if reply.hang_up == "before":
                # Nothing lingers: the other side sees a reset, not an end.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
                return
            body = model.body(reply)
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            if reply.hang_up == "between chunks":
                self.send_header("Transfer-Encoding", "chunked")
                body, self.close_connection = b"%x\r\n%b\r\n" % (len(body), body), True
            else:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if reply.hang_up == "within":
                body, self.close_connection = body[: len(body) // 2], True
            try:
                self.wfile.write(body)
            except ConnectionError:  # the client did not wait
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    return Handler
