"""What the serving process knows while it runs: its state, its model, its queue of answers.

The one mutable object behind the handlers; knows no HTTP.
"""

import asyncio
import dataclasses
import functools
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slipstream_api import names
from slipstream_api.config import EngineConfig
from slipstream_api.observation import Ring
from slipstream_engine import apierror, bodies, drafting, forms, messages
from slipstream_engine.answers import Answerer
from slipstream_engine.apierror import ApiError
from slipstream_engine.bodies import BodyLimits
from slipstream_engine.digests import DigestOf
from slipstream_engine.forms import Wish
from slipstream_engine.guides.checker import Checker
from slipstream_engine.guides.spec import Guide, GuideError
from slipstream_engine.messages import Loaded, Step
from slipstream_engine.metrics import EngineMetrics
from slipstream_engine.pace import Pace
from slipstream_engine.questions import Document, Origin, Question, Questioner, TextSide
from slipstream_engine.rankclient import RankClient
from slipstream_engine.text import TokenBytes
from slipstream_engine.tokens import InternalTokens
from slipstream_engine.tracing import Tracing
from slipstream_kvstore import keys
from slipstream_kvstore.keys import Namespace

_NUM_OBSERVATIONS = 4096
# Tenants whose salt was turned into a key already.
_NUM_ROOT_KEYS = 4096


class State(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Serving:
    """All that exists only once the model is loaded."""

    loaded: Loaded
    namespace: Namespace
    questioner: Questioner
    answerer: Answerer
    token_bytes: TokenBytes
    body_limits: BodyLimits
    checker: Checker
    digest: DigestOf | None


class Engine:
    def __init__(
        self,
        config: EngineConfig,
        tokens: InternalTokens | None,
        rank: RankClient,
        tracing: Tracing | None = None,
    ) -> None:
        self.config = config
        self.tokens = tokens
        self.rank = rank
        self.tracing = tracing
        self.metrics = EngineMetrics(
            config.model.name, drafting.names(config.speculator), config.speculator.max_draft_tokens
        )
        self.observations = Ring(_NUM_OBSERVATIONS, secrets.token_hex(8))
        self.pace = Pace()
        # No request waits for its own beginning beyond its deadline.
        self.read_s = min(bodies.READ_S, config.limits.max_deadline_ms / 1000)
        self.state = State.LOADING
        self.num_outstanding = 0
        self._serving: Serving | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._root_key = functools.lru_cache(_NUM_ROOT_KEYS)(self._make_root_key)
        rank.on_step = self._observe_step

    @property
    def qualified_name(self) -> str:
        return names.qualified_name(self.config.model.namespace, self.config.model.name)

    @property
    def current_state(self) -> State:
        """A dead rank outweighs whatever the serving process was doing."""
        return self.state if self.rank.is_alive else State.FAILED

    def begin_serving(self, loaded: Loaded, text: TextSide) -> None:
        config = self.config
        self._serving = Serving(
            loaded=loaded,
            namespace=messages.decode_namespace(loaded.namespace),
            questioner=Questioner(
                text,
                loaded.max_context,
                config.limits,
                is_drafting=config.speculator.method in ("auto", "edit"),
            ),
            answerer=Answerer(config, self.rank, text.token_bytes, self.metrics, self.observations),
            token_bytes=text.token_bytes,
            body_limits=BodyLimits.of(loaded.max_context, text.longest_token_bytes),
            checker=Checker(text.vocabulary),
            digest=None if config.model.digest else DigestOf(Path(config.model.path)),
        )
        self.rank.tell(text.vocabulary)
        if self.state is State.LOADING:
            self.state = State.READY

    def begin_draining(self) -> None:
        self.state = State.DRAINING

    async def wait_idle(self) -> None:
        """Until no answer is under way."""
        await self._idle.wait()

    def serving_or_none(self) -> Serving | None:
        return self._serving

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
    def slots(self, count: int) -> Iterator[None]:
        """Places for the choices of one answer.

        Raises ApiError: 429 when running and waiting are full, 400 for more than there are ever.
        """
        limits = self.config.limits
        num_places = limits.max_running_sequences + limits.max_waiting_requests
        if count > num_places:
            raise ApiError(
                400,
                f"{count} answers at once; {num_places} may wait and run",
                code="invalid_value",
            )
        now_s = time.monotonic()
        if self.num_outstanding + count > num_places:
            retry_after_s = self.pace.retry_after_s(now_s, limits.max_waiting_requests)
            raise apierror.overloaded(self.num_outstanding, retry_after_s)
        self.num_outstanding += count
        self._idle.clear()
        try:
            yield
        finally:
            self.num_outstanding -= count
            self.pace.free(time.monotonic(), count)
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

    def root_key(self, tenant_salt: str | None) -> bytes:
        """What the page keys of a tenant's prompts start from."""
        return self._root_key(tenant_salt)

    async def question(self, document: Document, origin: Origin) -> Question:
        """The request in tokens. Raises ApiError (400; 504 for a guide that waits too long)."""
        serving = self.serving()
        questioner, guide = serving.questioner, None
        # A long prompt takes tens of milliseconds, in which streams would stand still. So do
        # schemas.
        if document.is_formed:
            wish = await asyncio.to_thread(questioner.wish, document)
            deadline_s = questioner.deadline_s(document, origin)
            guide = None if wish is None else await _tried(serving.checker, wish, deadline_s)
        return await asyncio.to_thread(questioner.question, document, origin, guide)

    def close(self) -> None:
        """Ends the process that tries guides."""
        if self._serving is not None:
            self._serving.checker.close()

    def forget(self, tenant_salt: str | None) -> None:
        """Drop what drafts have learnt from a tenant's answers. Raises ApiError, RankError."""
        self.serving()
        self.rank.forget(self.root_key(tenant_salt))

    def digest(self) -> str | None:
        """Of the checkpoint; None until it is known."""
        if self.config.model.digest is not None:
            return self.config.model.digest
        digest = None if self._serving is None else self._serving.digest
        return None if digest is None else digest.value

    def _make_root_key(self, tenant_salt: str | None) -> bytes:
        namespace = self.serving().namespace
        return keys.root_key(dataclasses.replace(namespace, tenant_salt=tenant_salt))

    def _observe_step(self, step: Step) -> None:
        for failure in step.failures:
            self.metrics.failures[failure.cause].inc()
        self.pace.prefill(step.num_prefill_tokens, len(step.progress), step.run_s)
        self.metrics.speculation.observe(step)


async def _tried(checker: Checker, wish: Wish, deadline_s: float) -> Guide:
    """Raises ApiError (400, 504): guides are tried one by one, and others may be slow."""
    try:
        async with asyncio.timeout(deadline_s - time.monotonic()):
            try:
                return await checker.checked(wish.guide)
            except GuideError:
                if wish.plain is None:
                    raise
                return await checker.checked(wish.plain)
    except GuideError as error:
        raise forms.refused(error, wish.path) from error
    except TimeoutError as error:
        raise apierror.deadline_exceeded() from error
