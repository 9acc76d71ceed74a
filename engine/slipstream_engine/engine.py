"""What the serving process knows while it runs: its state, its model, its queue of answers.

The one mutable object behind the handlers; knows no HTTP.
"""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from slipstream_api import names
from slipstream_api.config import EngineConfig
from slipstream_engine import apierror
from slipstream_engine.answers import Answerer, Question
from slipstream_engine.apierror import ApiError
from slipstream_engine.chat import ChatTemplate
from slipstream_engine.messages import Loaded
from slipstream_engine.metrics import EngineMetrics
from slipstream_engine.observations import ObservationRing
from slipstream_engine.protocol import ChatRequest, CompletionRequest
from slipstream_engine.rankclient import RankClient
from slipstream_engine.request import SamplingParams
from slipstream_engine.text import TokenBytes
from slipstream_engine.tokens import InternalTokens
from slipstream_weights.checkpoint import TextModel


class State(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Serving:
    """All that exists only once the model is loaded."""

    loaded: Loaded
    text_model: TextModel
    template: ChatTemplate
    answerer: Answerer


class Engine:
    def __init__(
        self, config: EngineConfig, tokens: InternalTokens | None, rank: RankClient
    ) -> None:
        self.config = config
        self.tokens = tokens
        self.rank = rank
        self.metrics = EngineMetrics(config.model.name)
        self.observations = ObservationRing()
        self.state = State.LOADING
        self.num_outstanding = 0
        self._serving: Serving | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def qualified_name(self) -> str:
        return names.qualified_name(self.config.model.namespace, self.config.model.name)

    @property
    def current_state(self) -> State:
        """A dead rank outweighs whatever the serving process was doing."""
        return self.state if self.rank.is_alive else State.FAILED

    def begin_serving(self, loaded: Loaded, text_model: TextModel, template: ChatTemplate) -> None:
        answerer = Answerer(
            self.rank,
            TokenBytes(text_model.tokenizer),
            text_model.end_tokens,
            self.metrics,
            self.observations,
        )
        self._serving = Serving(loaded, text_model, template, answerer)
        if self.state is State.LOADING:
            self.state = State.READY

    def begin_draining(self) -> None:
        self.state = State.DRAINING

    async def wait_idle(self) -> None:
        """Until no answer is under way."""
        await self._idle.wait()

    def loaded(self) -> Loaded | None:
        return None if self._serving is None else self._serving.loaded

    def serving(self) -> Serving:
        """Raises ApiError: 503 while nothing can be asked, 500 when the rank is gone."""
        match self.current_state:
            case State.FAILED:
                raise apierror.internal("the engine has failed")
            case State.DRAINING:
                raise apierror.unavailable("the engine is draining", "draining")
            case _ if self._serving is None:
                raise apierror.unavailable("the model is loading", "loading")
        return self._serving

    @contextmanager
    def slot(self) -> Iterator[None]:
        """A place for one answer. Raises ApiError (429) when running and waiting are full."""
        limits = self.config.limits
        if self.num_outstanding >= limits.max_running_sequences + limits.max_waiting_requests:
            raise apierror.overloaded(self.num_outstanding)
        self.num_outstanding += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_outstanding -= 1
            if self.num_outstanding == 0:
                self._idle.set()

    def check_model(self, asked: str, claimed: str | None, *, is_trusted: bool) -> None:
        """Raises ApiError (404) for a model that is not this one.

        A trusted gateway that claims to mean this model may send any name: it resolved an alias.
        """
        if asked in (self.config.model.name, self.qualified_name):
            return
        if is_trusted and claimed == self.qualified_name:
            return
        raise ApiError(
            404,
            f"the model {asked!r} does not exist here",
            param="model",
            code="model_not_found",
        )

    async def question(
        self, document: ChatRequest | CompletionRequest, session: str | None
    ) -> Question:
        """The request in tokens. Raises ApiError (400)."""
        serving = self.serving()
        # A long prompt takes tens of milliseconds, in which streams would stand still.
        prompt = await asyncio.to_thread(_encode, serving, document)
        max_context = serving.loaded.max_context
        param = "messages" if isinstance(document, ChatRequest) else "prompt"
        if not prompt:
            raise ApiError(400, "the prompt has no tokens", param=param, code="invalid_value")
        room = max_context - len(prompt)
        limit = document.limit()
        if room < 1 or (limit is not None and limit > room):
            wanted = f" and {limit} for the answer" if limit is not None else ""
            raise ApiError(
                400,
                f"the context holds {max_context} tokens; asked for are {len(prompt)} tokens of"
                f" prompt{wanted}",
                param=param,
                code="context_length_exceeded",
            )
        return Question(
            prompt=prompt,
            max_tokens=limit or room,
            sampling=_sampling(document),
            stops=document.stops(),
            session=session,
        )


def _encode(serving: Serving, document: ChatRequest | CompletionRequest) -> tuple[int, ...]:
    tokenizer = serving.text_model.tokenizer
    if isinstance(document, ChatRequest):
        # The template writes its own special tokens.
        text = serving.template.render(document.messages)
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)
    if isinstance(document.prompt, str):
        return tuple(tokenizer.encode(document.prompt, add_special_tokens=True).ids)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    for index, token in enumerate(document.prompt):
        if token >= size:
            raise ApiError(
                400,
                f"token {token} is not in the vocabulary of {size}",
                param=f"prompt[{index}]",
                code="invalid_value",
            )
    return tuple(document.prompt)


def _sampling(document: ChatRequest | CompletionRequest) -> SamplingParams:
    return SamplingParams(
        temperature=1.0 if document.temperature is None else document.temperature,
        top_p=1.0 if document.top_p is None else document.top_p,
        top_k=document.top_k or 0,
        seed=secrets.randbits(63) if document.seed is None else document.seed,
    )
