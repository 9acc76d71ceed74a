"""How long a context and how many pages a configuration gives one checkpoint; integers only."""

from dataclasses import dataclass

from slipstream_api.config import ConfigError, EngineConfig
from slipstream_kvstore.layout import PageLayout, PoolLayout
from slipstream_weights.checkpoint import Checkpoint

# Tokens that each running sequence may expect where the configuration names no number of bytes.
_DEFAULT_SEQUENCE_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Sizing:
    layout: PageLayout
    num_pages: int
    max_context: int


def resolve(config: EngineConfig, checkpoint: Checkpoint) -> Sizing:
    """Raises ConfigError: a context or a number of bytes that cannot work."""
    max_context = config.model.max_context or checkpoint.max_positions
    if max_context > checkpoint.max_positions:
        raise ConfigError(
            f"{max_context} tokens, but the model was made for {checkpoint.max_positions}",
            "model.maxContext",
        )
    token_shape = (checkpoint.num_layers, checkpoint.num_kv_heads, checkpoint.head_dim)
    layout = PageLayout(
        page_tokens=config.pages.page_tokens,
        pools=(
            PoolLayout("k", config.dtype, token_shape),
            PoolLayout("v", config.dtype, token_shape),
        ),
    )
    one_context = layout.pages_for(max_context)
    if config.pages.kv_bytes is None:
        sequences = config.limits.max_running_sequences * layout.pages_for(_DEFAULT_SEQUENCE_TOKENS)
        return Sizing(layout, max(one_context, sequences), max_context)
    num_pages = layout.num_pages(config.pages.kv_bytes)
    if num_pages < one_context:
        raise ConfigError(
            f"{config.pages.kv_bytes} bytes are {num_pages} pages, but one context of"
            f" {max_context} tokens takes {one_context * layout.page_bytes} bytes",
            "pages.kvBytes",
        )
    return Sizing(layout, num_pages, max_context)
