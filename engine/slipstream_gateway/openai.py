"""The OpenAI shapes that the gateway itself reads and writes: envelopes, errors, model lists.

Knows no HTTP server; never changes the bytes of a request.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic_core import from_json

from slipstream_api.observation import ErrorClass
from slipstream_gateway.table import Model, RoutingTable

_NAMES_SHOWN = 10
_NAME_CHARACTERS = 128
_FAILURES = {
    ErrorClass.ENGINE_UNREACHABLE: (503, "The model's replica cannot be reached; try again soon."),
    ErrorClass.ENGINE_TIMEOUT: (504, "The model's replica was silent for too long."),
    ErrorClass.ENGINE_DROPPED: (502, "The model's replica ended before it answered."),
    ErrorClass.ENGINE_BROKE: (502, "The model's replica ended in the middle of its answer."),
    ErrorClass.ENGINE_FAILED: (502, "The model's replica failed in the middle of its answer."),
    ErrorClass.GATEWAY_SHUTDOWN: (503, "This gateway is shutting down; try again."),
    ErrorClass.GATEWAY_FAILED: (500, "The gateway failed; its log has more under the request id."),
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """A parsed request body, of which the gateway understands only who it is for."""

    model: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ApiError:
    """One error as OpenAI's clients expect it."""

    status: int
    message: str
    type: str
    code: str | None = None
    param: str | None = None

    def dump(self) -> bytes:
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": error}).encode()

    def event(self) -> bytes:
        """The same as one server-sent event, for a stream that has begun."""
        return b"data: " + self.dump() + b"\n\n"


def parse(body: bytes) -> Envelope | ApiError:
    """Read what routing needs. Everything else in the body is the engine's to judge."""
    try:
        document = from_json(body)
    except ValueError as error:
        return invalid(f"The body is not valid JSON: {error}")
    if not isinstance(document, dict):
        return invalid("The body must be a JSON object.")
    model = document.get("model")
    if model is None:
        return invalid("You must provide a model parameter.", param="model")
    if not isinstance(model, str) or not model:
        return invalid("model must be a string that is not empty.", param="model")
    return Envelope(model=model, body=document)


def invalid(message: str, *, param: str | None = None) -> ApiError:
    return ApiError(400, message, "invalid_request_error", param=param)


def too_large(limit_bytes: int) -> ApiError:
    message = f"The body is larger than {limit_bytes} bytes."
    return ApiError(413, message, "invalid_request_error", code="request_too_large")


def too_many(excess: str) -> ApiError:
    return ApiError(413, f"{excess}.", "invalid_request_error", code="request_too_large")


def model_not_found(name: str, table: RoutingTable) -> ApiError:
    shown = name if len(name) <= _NAME_CHARACTERS else name[:_NAME_CHARACTERS] + "…"
    message = f"The model `{shown}` does not exist. {_existing(sorted(table.by_name))}"
    return ApiError(404, message, "invalid_request_error", code="model_not_found", param="model")


def nothing_ready(model: Model) -> ApiError:
    message = f"The model `{model.name}` has no ready replica; try again soon."
    return ApiError(503, message, "server_error", code="model_not_ready")


def no_token(namespace: str) -> ApiError:
    """Engines resolve aliases and count sessions only for who shows them their token."""
    message = f"The gateway has no internal token for namespace `{namespace}` yet; try again soon."
    return ApiError(503, message, "server_error", code="internal_token_missing")


def failed(error_class: ErrorClass) -> ApiError:
    """What a client is told of a request that got no answer, or not all of it."""
    status, message = _FAILURES[error_class]
    return ApiError(status, message, "server_error", code=error_class.value)


def list_models(table: RoutingTable) -> dict[str, Any]:
    """Every name that a client may send, as `GET /v1/models` shows it."""
    return {
        "object": "list",
        "data": [_card(name, table.by_name[name]) for name in sorted(table.by_name)],
    }


def model_card(table: RoutingTable, name: str) -> dict[str, Any] | None:
    model = table.by_name.get(name)
    return None if model is None else _card(name, model)


def _card(name: str, model: Model) -> dict[str, Any]:
    created = datetime.fromisoformat(model.created_at) if model.created_at else None
    return {
        "id": name,
        "object": "model",
        "created": 0 if created is None else int(created.timestamp()),
        "owned_by": model.namespace,
        # As vLLM has it: names with one root are one model.
        "root": model.qualified_name,
    }


def _existing(existing: Sequence[str]) -> str:
    if not existing:
        return "There is no model yet."
    rest = len(existing) - _NAMES_SHOWN
    more = f" and {rest} more" if rest > 0 else ""
    return f"Available: {', '.join(existing[:_NAMES_SHOWN])}{more}."
