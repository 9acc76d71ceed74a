"""The engine over HTTP: OpenAI's endpoints. Knows documents and streams; no tokens, no tensors."""

import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from msgspec import UNSET

from slipstream_api import names
from slipstream_engine import apierror, bodies, documents, internal, protocol, specstats, tracing
from slipstream_engine.answers import Answer
from slipstream_engine.apierror import ApiError
from slipstream_engine.batch import Cause
from slipstream_engine.choices import Piece
from slipstream_engine.documents import ChatShape, ChunkUsage, TextShape
from slipstream_engine.engine import Engine, State
from slipstream_engine.protocol import ChatRequest, CompletionRequest
from slipstream_engine.questions import Document, Origin
from slipstream_engine.rankclient import RankError, RequestError
from slipstream_engine.streams import EventStream

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
    except web.HTTPException as error:
        if error.status < 400:
            raise
        shaped = ApiError(error.status, error.reason, code=f"http_{error.status}")
        if "Allow" in error.headers:
            shaped.headers["Allow"] = error.headers["Allow"]
    except ConnectionError:
        # The client left and gets nothing of this; raised on, aiohttp would log it as a fault.
        return web.Response(status=499)
    except Exception as error:
        shaped = _shaped(error, request)
    response = web.json_response(shaped.document(), status=shaped.status, headers=shaped.headers)
    if not request.content.is_eof():
        # The rest of the body is not worth reading.
        response.force_close()
    return response


def _shaped(error: Exception, request: web.Request) -> ApiError:
    match error:
        case ApiError():
            return error
        case RankError():
            return apierror.internal(str(error))
        case RequestError(cause=Cause.GUIDE):
            return apierror.guide_failed(str(error))
        case RequestError():
            return apierror.draw_failed(str(error))
    # Without its words, which may be the client's.
    where = "".join(traceback.format_tb(error.__traceback__))
    extra = {"type": type(error).__name__, "at": where}
    _log.error("unexpected error in %s %s", request.method, request.path, extra=extra)
    return apierror.internal("unexpected error")


class _Handlers:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._created = int(time.time())

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, ChatRequest, ChatShape)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, CompletionRequest, TextShape)

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

    async def _generate(
        self,
        request: web.Request,
        kind: type[protocol.Document],
        shape: type[ChatShape | TextShape],
    ) -> web.StreamResponse:
        engine, arrival_s = self._engine, time.monotonic()
        serving = engine.serving()
        body = await bodies.read(request, serving.body_limits, engine.read_s)
        document = protocol.parse(kind, body)
        origin = self._origin(request, document, arrival_s)
        made = shape(
            document.model,
            serving.token_bytes,
            has_logprobs=document.num_top_logprobs is not None,
        )
        request_id = request.headers.get(names.HEADER_REQUEST_ID) or made.id
        headers = {names.HEADER_REQUEST_ID: request_id}
        events = EventStream(request, headers)
        try:
            with (
                tracing.request_span(engine.tracing, request.headers, document) as span,
                engine.slots(document.num_choices),
            ):
                span.response_id = made.id
                question = await engine.question(document, origin)
                events.deadline_s = question.deadline_s
                with serving.answerer.ask(question) as answer:
                    span.answer = answer
                    if document.stream:
                        await _stream(events, answer, made, document)
                        return events.response
                    return await _whole(answer, made, headers)
        except ConnectionError:
            raise
        except Exception as error:
            if not events.is_open:
                raise
            await events.fail(_shaped(error, request))
            return events.response

    def _origin(self, request: web.Request, document: Document, arrival_s: float) -> Origin:
        """What a gateway says of the request; nobody else is believed. Raises ApiError (404)."""
        engine, headers = self._engine, request.headers
        is_trusted = engine.tokens is not None and engine.tokens.is_valid(
            headers.get(names.HEADER_TOKEN)
        )
        claimed = headers.get(names.HEADER_MODEL)
        engine.check_model(document.model, claimed, is_trusted=is_trusted)
        if not is_trusted:
            return Origin(arrival_s, root_key=engine.root_key(None))
        return Origin(
            arrival_s,
            session=headers.get(names.HEADER_SESSION),
            track=headers.get(names.HEADER_TRACK),
            root_key=engine.root_key(headers.get(names.HEADER_CACHE_SALT)),
        )

    def _model_document(self) -> dict[str, Any]:
        serving = self._engine.serving_or_none()
        document: dict[str, Any] = {
            "id": self._engine.config.model.name,
            "object": "model",
            "created": self._created,
            "owned_by": self._engine.config.model.namespace,
        }
        if serving is not None:
            document["max_model_len"] = serving.loaded.max_context
        return document


async def _whole(
    answer: Answer, shape: ChatShape | TextShape, headers: dict[str, str]
) -> web.Response:
    pieces: list[Piece] = []
    while not answer.is_complete:
        pieces += await answer.take()
    told = specstats.metrics(answer.outcomes, answer.question.detail)
    body = shape.whole(_joined(pieces, len(answer.choices)), answer.usage(), told)
    return web.Response(body=body, content_type="application/json", headers=headers)


def _joined(pieces: list[Piece], num_choices: int) -> list[Piece]:
    """One piece a choice, in order: all that it said, and how it ended."""
    by_choice: list[list[Piece]] = [[] for _ in range(num_choices)]
    for piece in pieces:
        by_choice[piece.index].append(piece)
    return [
        Piece(
            index,
            "".join(piece.text for piece in parts),
            tuple(token for piece in parts for token in piece.tokens),
            parts[-1].finish,
            "".join(piece.reasoning for piece in parts),
            tuple(call for piece in parts for call in piece.calls),
        )
        for index, parts in enumerate(by_choice)
    ]


async def _stream(
    events: EventStream, answer: Answer, shape: ChatShape | TextShape, document: Document
) -> None:
    """One event a choice and step: tokens that come together leave together."""
    pieces = await answer.take()
    await events.send(shape.opening(len(answer.choices), _chunk_usage(document, answer)))
    while True:
        use = _chunk_usage(document, answer)
        if chunks := [chunk for piece in pieces for chunk in shape.parts(piece, use)]:
            await events.send(chunks)
        else:
            await events.stay_alive()
        if answer.is_complete:
            break
        pieces = await answer.take()
    if document.includes_usage:
        told = specstats.metrics(answer.outcomes, answer.question.detail)
        await events.send([shape.closing(answer.usage(), told)])
    await events.end()


def _chunk_usage(document: Document, answer: Answer) -> ChunkUsage:
    """With include_usage every chunk has the field, null until the last one."""
    if document.has_usage_in_every_chunk:
        return documents.usage(answer.usage())
    return None if document.includes_usage else UNSET
