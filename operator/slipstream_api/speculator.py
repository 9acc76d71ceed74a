"""How answers are drafted: a part of the engine's configuration and of the `Speculator` kind."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from slipstream_api.schema import ConfigModel


class DraftModelSpec(ConfigModel):
    """A small model with the tokeniser of the one that it drafts for."""

    path: str = Field(min_length=1, description="A .gguf file or a folder with safetensors.")
    # Of its own pages. None: as many tokens as the target's pages hold.
    kv_bytes: int | None = Field(default=None, ge=1)


class SuffixStoreSpec(ConfigModel):
    """Past answers of each tenant, from which its next ones are drafted; never shared.

    A million tokens take half a gigabyte.
    """

    # 0: nothing is learnt from answers. In fewer than 4 no two answers can be told apart.
    max_tokens_per_tenant: Literal[0] | Annotated[int, Field(ge=4, le=100_000_000)] = 32_768
    max_tenants: int = Field(default=32, ge=1, le=1_000_000)


class SyntheticAcceptanceSpec(ConfigModel):
    """For load tests alone: drafted tokens count as accepted whatever the model says."""

    # Tokens of an average step, the one that is never drafted included: 2500 are 2.5.
    length_milli: int = Field(ge=1000, le=65_000)
    seed: int = 0


class SpeculatorSpec(ConfigModel):
    """No field changes what is answered, but for `syntheticAcceptance`."""

    # auto: from the prediction or the code in the prompt (edit), from the conversation and the
    # tenant's past answers (suffix), from the draft model where there is one: whichever promises
    # most. The others are one of these alone; lookup is the plain search for the latest tokens.
    method: Literal["auto", "none", "edit", "suffix", "lookup", "model"] = "auto"
    # The longest draft of a step; 0 is none.
    max_draft_tokens: int = Field(default=64, ge=0, le=64)
    # True: as long as pays by the costs of steps, measured at start. False: always the longest.
    adaptive: bool = True
    suffix: SuffixStoreSpec = Field(default_factory=SuffixStoreSpec)
    draft: DraftModelSpec | None = None
    # How the draft model drafts: its likeliest tokens, or drawn from its own distribution and
    # accepted by rejection sampling. Either leaves the target's distribution as it is.
    sampling: Literal["greedy", "probabilistic"] = "greedy"
    synthetic_acceptance: SyntheticAcceptanceSpec | None = None

    @model_validator(mode="after")
    def _a_model_is_named_where_it_is_needed(self) -> Self:
        if self.method == "model" and self.draft is None:
            raise ValueError("method model needs draft")
        if self.draft is not None and self.method not in ("auto", "model"):
            raise ValueError(f"method {self.method} does not use draft")
        if self.sampling == "probabilistic" and self.draft is None:
            raise ValueError("sampling probabilistic needs draft")
        if self.synthetic_acceptance is not None and self.draft is not None:
            raise ValueError("syntheticAcceptance drafts by itself: leave draft out")
        return self

    @property
    def is_drafting(self) -> bool:
        return self.method != "none" and self.max_draft_tokens > 0
