"""How long a context and how many pages a configuration gives one checkpoint; integers only."""

from dataclasses import dataclass, replace

from slipstream_api.config import ConfigError, EngineConfig
from slipstream_engine import split as splits
from slipstream_engine.split import Split, SplitError
from slipstream_kvstore.layout import KvDtype, PageLayout, PoolLayout
from slipstream_weights.checkpoint import Checkpoint

# Tokens that each running sequence may expect where the configuration names no number of bytes.
_DEFAULT_SEQUENCE_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Sizing:
    layout: PageLayout
    num_pages: int
    max_context: int


def check_split(checkpoint: Checkpoint, split: Split) -> None:
    """Raises ConfigError: the model cannot be split so."""
    try:
        splits.check(checkpoint, split)
    except SplitError as error:
        raise ConfigError(str(error), f"parallel.{error.field}") from error


def resolve(
    config: EngineConfig, checkpoint: Checkpoint, split: Split, kv_dtype: KvDtype
) -> Sizing:
    """One rank's share. Raises ConfigError: a split, a context or bytes that cannot work."""
    check_split(checkpoint, split)
    max_context = config.model.max_context or checkpoint.max_positions
    if max_context > checkpoint.max_positions:
        raise ConfigError(
            f"{max_context} tokens, but the model was made for {checkpoint.max_positions}",
            "model.maxContext",
        )
    layout = _layout(config, checkpoint, split, kv_dtype)
    # Every rank has the same pages: as many as the first stage, which has the most layers, can.
    largest = _layout(config, checkpoint, replace(split, rank=0), kv_dtype)
    one_context = layout.pages_for(max_context)
    if config.pages.kv_bytes is None:
        sequences = config.limits.max_running_sequences * layout.pages_for(_DEFAULT_SEQUENCE_TOKENS)
        return Sizing(layout, max(one_context, sequences), max_context)
    num_pages = largest.num_pages(config.pages.kv_bytes)
    if num_pages < one_context:
        raise ConfigError(
            f"{config.pages.kv_bytes} bytes are {num_pages} pages, but one context of"
            f" {max_context} tokens takes {one_context * largest.page_bytes} bytes",
            "pages.kvBytes",
        )
    return Sizing(layout, num_pages, max_context)


def _layout(
    config: EngineConfig, checkpoint: Checkpoint, split: Split, kv_dtype: KvDtype
) -> PageLayout:
    """Keys and values of the rank's layers and heads."""
    num_layers = len(split.layers(checkpoint.num_layers))
    token_shape = (num_layers, checkpoint.num_kv_heads // split.tensor, checkpoint.head_dim)
    return PageLayout(
        page_tokens=config.pages.page_tokens,
        pools=(
            PoolLayout("k", kv_dtype, token_shape),
            PoolLayout("v", kv_dtype, token_shape),
        ),
    )
