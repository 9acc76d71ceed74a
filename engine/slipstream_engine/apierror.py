"""Errors that a client sees, in the shape that OpenAI's clients understand."""

from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """Answered as `{"error": {message, type, param, code}}` with `status`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type_: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type_
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def document(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


def unavailable(message: str, code: str) -> ApiError:
    """503: another replica, or this one later, can answer."""
    return ApiError(
        503, message, type_="service_unavailable", code=code, headers={"Retry-After": "5"}
    )


def overloaded(num_outstanding: int, retry_after_s: int) -> ApiError:
    return ApiError(
        429,
        f"{num_outstanding} answers are waiting or under way; try again in {retry_after_s} s",
        type_="rate_limit_error",
        code="queue_full",
        headers={"Retry-After": str(retry_after_s)},
    )


def deadline_exceeded() -> ApiError:
    """504, and a wish that clients heed: asked again at once, it would only be late again."""
    return ApiError(
        504,
        "the request's deadline has passed",
        type_="timeout_error",
        code="deadline_exceeded",
        headers={"x-should-retry": "false"},
    )


def cut_by_drain() -> ApiError:
    return unavailable("the engine ends and could not wait for this answer", "draining")


def guide_failed(reason: str) -> ApiError:
    """500: the form that was asked for became too much work, or the library gave up on it."""
    return ApiError(
        500,
        f"the form of the answer could not be kept: {reason}",
        type_="server_error",
        code="guide_failed",
        headers={"x-should-retry": "false"},
    )


def draw_failed(reason: str) -> ApiError:
    """500: the model gave no numbers to draw a token from."""
    return ApiError(
        500,
        f"no token could be drawn: {reason}",
        type_="server_error",
        code="draw_failed",
        headers={"x-should-retry": "false"},
    )


def internal(message: str) -> ApiError:
    return ApiError(500, message, type_="server_error", code="engine_failed")
