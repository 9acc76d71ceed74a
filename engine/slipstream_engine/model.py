"""One decoder family, read top to bottom: Llama, Mistral, Qwen2, Qwen3, Qwen3-MoE, GLM-4-MoE.

Knows tensors and a ragged batch of them; no requests, no scheduling, no files.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream_engine.group import Group
from slipstream_engine.kvpool import KvPool
from slipstream_engine.layers import Ending, Layer, Mixture, Mlp, Weights
from slipstream_engine.split import Split
from slipstream_kernels.dispatch import Kernels
from slipstream_kernels.reference import Span
from slipstream_weights.checkpoint import Checkpoint, Llama3RopeScaling, RopeFactors


@dataclass(frozen=True, slots=True)
class ModelInput:
    """A ragged batch: all chunks' tokens one after another.

    tokens, positions, slots: [tokens]; slots are rows of the pool that receive the tokens' keys
    and values. rows: [draws], whose next token is wanted. `reach`: which keys each token sees.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    rows: Tensor
    reach: "list[Span] | Tables"


@dataclass(frozen=True, slots=True)
class Tables:
    """One token each of several sequences, in tensors alone, so that the step can be recorded.

    pages: [sequences, pages]; lengths: [sequences], the new token included.
    """

    pages: Tensor
    lengths: Tensor
    page_tokens: int


class Boundaries:
    """Keeps the residual stream of some places: b is before layer b, or after the last of b layers.

    Of a model in one stage: a stage sees its own layers alone.
    """

    def __init__(self, wanted: tuple[int, ...]) -> None:
        self._wanted = wanted
        self._seen: dict[int, Tensor] = {}

    def see(self, boundary: int, x: Tensor) -> None:
        """x: [tokens, hidden]; it is changed in place later."""
        if boundary in self._wanted:
            self._seen[boundary] = x.clone()

    def features(self) -> Tensor:
        """[tokens, boundaries x hidden], in the order in which they are wanted.

        Raises ValueError for one that the model does not have.
        """
        missing = [one for one in self._wanted if one not in self._seen]
        if missing:
            raise ValueError(f"the model has no residual boundaries {missing}")
        return torch.cat([self._seen[one] for one in self._wanted], dim=-1)


class Decoder:
    """One rank of a model: token ids and positions in; keys and values go to the pool on the way.

    The residual stream is float32 on CPUs; matrices in codes round what they multiply to 8 bits.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: Weights,
        split: Split,
        group: Group,
        kernels: Kernels,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.device = device
        self._weights = weights
        self._group = group
        self._kernels = kernels
        self._num_heads = checkpoint.num_heads // split.tensor
        self._num_kv_heads = checkpoint.num_kv_heads // split.tensor
        self._inverse_frequencies = inverse_frequencies(checkpoint).to(device)

    @torch.inference_mode()
    def forward(
        self, batch: ModelInput, pool: KvPool, boundaries: Boundaries | None = None
    ) -> Tensor | None:
        """Logits of `rows`, [draws, vocabulary], float32, on the last stage; None on the others.

        `boundaries` receive the residual stream where they want it.
        """
        turns = self._turns(batch.positions)
        x = self._begin(batch)
        for index, layer in enumerate(self._weights.layers):
            if boundaries is not None:
                boundaries.see(index, x)
            x += self._attend(layer, index, x, turns, batch, pool)
            normed = self._norm(x, layer.post_norm)
            x += self._group.sum_(self._mlp(layer.mlp, normed))
        if boundaries is not None:
            boundaries.see(len(self._weights.layers), x)
        if self._weights.ending is None:
            self._group.send_hidden(x)
            return None
        return self._logits(self._weights.ending, x.index_select(0, batch.rows))

    def _begin(self, batch: ModelInput) -> Tensor:
        if self._weights.embedding is None:
            size = self.checkpoint.hidden_size
            return self._group.receive_hidden(len(batch.tokens), size, self.dtype)
        return self._kernels.lookup(self._weights.embedding, batch.tokens).to(self.dtype)

    def _logits(self, ending: Ending, x: Tensor) -> Tensor:
        logits = self._kernels.linear(self._norm(x, ending.norm), ending.head, None)
        return self._group.gather(logits)[:, : self.checkpoint.vocab_size].float()

    def _attend(
        self,
        layer: Layer,
        index: int,
        x: Tensor,
        turns: Tensor,
        batch: ModelInput,
        pool: KvPool,
    ) -> Tensor:
        weights, kernels = layer.attention, self._kernels
        heads, kv_heads, size = self._num_heads, self._num_kv_heads, self.checkpoint.head_dim
        qkv = kernels.linear(self._norm(x, layer.input_norm), weights.qkv, weights.qkv_bias)
        qkv = qkv.view(len(x), heads + 2 * kv_heads, size)
        if weights.q_norm is not None and weights.k_norm is not None:
            qkv[:, :heads] = self._norm(qkv[:, :heads], weights.q_norm)
            qkv[:, heads : heads + kv_heads] = self._norm(
                qkv[:, heads : heads + kv_heads], weights.k_norm
            )
        keys, values = pool.layer("k", index), pool.layer("v", index)
        kernels.rope_write_kv(qkv, turns, batch.slots, keys, values)
        attended = self._reach(qkv[:, :heads], keys, values, batch.reach)
        output = kernels.linear(
            attended.reshape(len(x), heads * size), weights.output, weights.output_bias
        )
        return self._group.sum_(output)

    def _reach(
        self, query: Tensor, keys: Tensor, values: Tensor, reach: list[Span] | Tables
    ) -> Tensor:
        if isinstance(reach, Tables):
            return self._kernels.paged_decode(
                query, keys, values, reach.pages, reach.lengths, reach.page_tokens
            )
        return self._kernels.paged_attention(query, keys, values, reach)

    def _mlp(self, mlp: Mlp | Mixture, x: Tensor) -> Tensor:
        kernels = self._kernels
        if isinstance(mlp, Mlp):
            return kernels.linear(
                kernels.silu_mul(kernels.linear(x, mlp.gate_up, None)), mlp.down, None
            )
        logits = self._route_logits(x, mlp.router)
        chosen, shares = kernels.route(logits, mlp.correction, mlp.routing)
        answer = kernels.experts(x, chosen, shares, mlp.gate_ups, mlp.downs)
        return answer if mlp.shared is None else answer + self._mlp(mlp.shared, x)

    def _route_logits(self, x: Tensor, router: Tensor) -> Tensor:
        """Experts are chosen in float32, which the model's own products may not know."""
        if x.dtype is torch.float32:
            return self._kernels.linear(x, router, None)
        return torch.nn.functional.linear(x.float(), router)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._kernels.rms_norm(x, weight, self.checkpoint.rms_norm_eps)

    def _turns(self, positions: Tensor) -> Tensor:
        """How far each pair is turned: [tokens, rotary_dim / 2], complex64."""
        angles = positions.float().unsqueeze(1) * self._inverse_frequencies
        return torch.polar(torch.ones_like(angles), angles)


def inverse_frequencies(checkpoint: Checkpoint) -> Tensor:
    """Radians per position of each pair of dimensions: [rotary_dim / 2], float32."""
    exponents = torch.arange(0, checkpoint.rotary_dim, 2).float() / checkpoint.rotary_dim
    plain = 1.0 / (checkpoint.rope_theta**exponents)
    match checkpoint.rope_scaling:
        case None:
            return plain
        case RopeFactors(factors):
            return plain / torch.tensor(factors)
        case Llama3RopeScaling() as scaling:
            return _llama3_frequencies(plain, scaling)


def _llama3_frequencies(plain: Tensor, scaling: Llama3RopeScaling) -> Tensor:
    """Long waves slowed down by `factor`, short ones kept, a ramp between (Llama 3.1's report)."""
    waves = 2 * math.pi / plain
    turns = scaling.original_max_position / waves
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    ramp = ramp.clamp(0.0, 1.0)
    return (1 - ramp) * plain / scaling.factor + ramp * plain
