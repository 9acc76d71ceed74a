"""The engine over HTTP: OpenAI's endpoints. Knows documents and streams; no tokens, no tensors."""

import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from aiohttp import web

from slipstream_api import names
from slipstream_engine import apierror, internal, protocol
from slipstream_engine.answers import Piece, Question
from slipstream_engine.apierror import ApiError
from slipstream_engine.engine import Engine, State
from slipstream_engine.protocol import ChatRequest, CompletionRequest
from slipstream_engine.rankclient import RankError

_log = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(engine: Engine) -> web.Application:
    app = web.Application(
        middlewares=[_errors_as_documents], client_max_size=engine.config.server.max_body_bytes
    )
    handlers = _Handlers(engine)
    app.add_routes(
        [
            web.post("/v1/chat/completions", handlers.chat),
            web.post("/v1/completions", handlers.complete),
            web.get("/v1/models", handlers.models),
            web.get("/v1/models/{name:.+}", handlers.model),
            web.get("/health", handlers.health),
            web.get("/ready", handlers.ready),
            web.get("/metrics", handlers.metrics),
            *internal.routes(engine),
        ]
    )
    return app


@web.middleware
async def _errors_as_documents(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Every error is a document of OpenAI's shape, whoever raised it."""
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response(error.document(), status=error.status, headers=error.headers)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        shaped = ApiError(error.status, error.reason, code=f"http_{error.status}")
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        return web.json_response(shaped.document(), status=error.status, headers=headers)
    except RankError as error:
        return web.json_response(apierror.internal(str(error)).document(), status=500)
    except ConnectionResetError:
        # The client left; aiohttp closes what is left of the connection.
        raise
    except Exception:
        _log.exception("unexpected error in %s %s", request.method, request.path)
        return web.json_response(apierror.internal("unexpected error").document(), status=500)


class _Handlers:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._created = int(time.time())

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self._engine.serving()
        document = protocol.parse(ChatRequest, await request.read())
        return await self._answer(request, document, _ChatShape(document.model))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self._engine.serving()
        document = protocol.parse(CompletionRequest, await request.read())
        return await self._answer(request, document, _CompletionShape(document.model))

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._model_document()]})

    async def model(self, request: web.Request) -> web.Response:
        self._engine.check_model(request.match_info["name"], None, is_trusted=False)
        return web.json_response(self._model_document())

    async def health(self, _: web.Request) -> web.Response:
        state = self._engine.current_state
        return web.json_response({"status": state}, status=503 if state is State.FAILED else 200)

    async def ready(self, _: web.Request) -> web.Response:
        state = self._engine.current_state
        return web.json_response({"status": state}, status=200 if state is State.READY else 503)

    async def metrics(self, _: web.Request) -> web.Response:
        self._engine.metrics.observe_load(self._engine.rank.load)
        return web.Response(
            body=self._engine.metrics.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _answer(
        self,
        request: web.Request,
        document: ChatRequest | CompletionRequest,
        shape: "_ChatShape | _CompletionShape",
    ) -> web.StreamResponse:
        engine = self._engine
        token = request.headers.get(names.HEADER_TOKEN)
        is_trusted = engine.tokens is not None and engine.tokens.is_valid(token)
        engine.check_model(
            document.model, request.headers.get(names.HEADER_MODEL), is_trusted=is_trusted
        )
        session = request.headers.get(names.HEADER_SESSION) if is_trusted else None
        headers = {}
        if names.HEADER_REQUEST_ID in request.headers:
            headers[names.HEADER_REQUEST_ID] = request.headers[names.HEADER_REQUEST_ID]
        with engine.slot():
            question = await engine.question(document, session)
            pieces = engine.serving().answerer.answer(question)
            if document.stream:
                return await _stream(
                    request, pieces, question, shape, headers, document.includes_usage()
                )
            text, last = "", Piece("", 0, None)
            async with aclosing(pieces):
                async for last in pieces:
                    text += last.text
            usage = _usage(question, last.num_tokens)
            return web.json_response(shape.whole(text, last, usage), headers=headers)

    def _model_document(self) -> dict[str, Any]:
        loaded = self._engine.loaded()
        document: dict[str, Any] = {
            "id": self._engine.config.model.name,
            "object": "model",
            "created": self._created,
            "owned_by": self._engine.config.model.namespace,
        }
        if loaded is not None:
            document["max_model_len"] = loaded.max_context
        return document


async def _stream(
    request: web.Request,
    pieces: AsyncGenerator[Piece],
    question: Question,
    shape: "_ChatShape | _CompletionShape",
    headers: dict[str, str],
    includes_usage: bool,
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={
            **headers,
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
    )
    # OpenAI: with include_usage every chunk has the field, null until the last one.
    extra = {"usage": None} if includes_usage else {}
    num_tokens = 0
    async with aclosing(pieces):
        try:
            await response.prepare(request)
            for chunk in shape.opening():
                await _send(response, {**chunk, **extra})
            async for piece in pieces:
                num_tokens = piece.num_tokens
                if piece.text:
                    await _send(response, {**shape.part(piece.text), **extra})
                if piece.finish is not None:
                    await _send(response, {**shape.closing(piece), **extra})
        except RankError as error:
            # The status line is long gone: an error event, and no [DONE].
            await _send(response, apierror.internal(str(error)).document())
            return response
    if includes_usage:
        await _send(response, shape.usage(_usage(question, num_tokens)))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def _send(response: web.StreamResponse, document: dict[str, Any]) -> None:
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    await response.write(b"data: " + body.encode() + b"\n\n")


def _usage(question: Question, num_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": len(question.prompt),
        "completion_tokens": num_tokens,
        "total_tokens": len(question.prompt) + num_tokens,
    }


def _finish(piece: Piece) -> str | None:
    return None if piece.finish is None else piece.finish.value


class _ChatShape:
    """The documents of one chat answer."""

    def __init__(self, model: str) -> None:
        self._base = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, text: str, last: Piece, usage: dict[str, int]) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "logprobs": None,
            "finish_reason": _finish(last),
        }
        return {**self._base, "object": "chat.completion", "choices": [choice], "usage": usage}

    def opening(self) -> list[dict[str, Any]]:
        return [self._chunk({"role": "assistant", "content": ""}, None)]

    def part(self, text: str) -> dict[str, Any]:
        return self._chunk({"content": text}, None)

    def closing(self, piece: Piece) -> dict[str, Any]:
        return self._chunk({}, _finish(piece))

    def usage(self, usage: dict[str, int]) -> dict[str, Any]:
        return {**self._base, "object": "chat.completion.chunk", "choices": [], "usage": usage}

    def _chunk(self, delta: dict[str, str], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._base, "object": "chat.completion.chunk", "choices": [choice]}


class _CompletionShape:
    """The documents of one plain completion; chunks and wholes have one form."""

    def __init__(self, model: str) -> None:
        self._base = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, text: str, last: Piece, usage: dict[str, int]) -> dict[str, Any]:
        return {**self._base, "choices": [self._choice(text, _finish(last))], "usage": usage}

    def opening(self) -> list[dict[str, Any]]:
        return []

    def part(self, text: str) -> dict[str, Any]:
        return {**self._base, "choices": [self._choice(text, None)]}

    def closing(self, piece: Piece) -> dict[str, Any]:
        return {**self._base, "choices": [self._choice("", _finish(piece))]}

    def usage(self, usage: dict[str, int]) -> dict[str, Any]:
        return {**self._base, "choices": [], "usage": usage}

    def _choice(self, text: str, finish: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
