"""Which part of a model one rank holds: integers only, no tensors.

Tensor ranks share every layer: each has some heads, some of the inner size and some of the
vocabulary. Pipeline stages have whole layers. Rank = stage * tensor ranks + tensor rank.
"""

from dataclasses import dataclass

from slipstream_weights.checkpoint import Checkpoint


class SplitError(Exception):
    """Why a model cannot be split as asked; `field` is `tensor` or `pipeline`."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Split:
    """One rank's place."""

    tensor: int = 1
    pipeline: int = 1
    rank: int = 0

    @property
    def num_ranks(self) -> int:
        return self.tensor * self.pipeline

    @property
    def tensor_rank(self) -> int:
        return self.rank % self.tensor

    @property
    def stage(self) -> int:
        return self.rank // self.tensor

    @property
    def is_first_stage(self) -> bool:
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        return self.stage == self.pipeline - 1

    def layers(self, num_layers: int) -> range:
        """The layers of this stage; earlier stages have one more where they cannot be equal.

        >>> [list(Split(1, 2, rank).layers(5)) for rank in range(2)]
        [[0, 1, 2], [3, 4]]
        """
        size, more = divmod(num_layers, self.pipeline)
        start = self.stage * size + min(self.stage, more)
        return range(start, start + size + (self.stage < more))

    def part(self, size: int) -> slice:
        """This tensor rank's equal part of a dimension that divides evenly."""
        each = size // self.tensor
        return slice(self.tensor_rank * each, (self.tensor_rank + 1) * each)

    def vocabulary(self, size: int, multiple: int) -> tuple[slice, int]:
        """This tensor rank's rows of the vocabulary, and how many every rank has with padding.

        >>> Split(3, 1, 2).vocabulary(100, 16)
        (slice(96, 100, None), 48)
        """
        each = -(-size // self.tensor)
        each = -(-each // multiple) * multiple
        start = min(self.tensor_rank * each, size)
        return slice(start, min(start + each, size)), each


def check(checkpoint: Checkpoint, split: Split) -> None:
    """Raises SplitError: heads, inner size or layers do not allow the split."""
    divided = {
        "query heads": checkpoint.num_heads,
        "KV heads": checkpoint.num_kv_heads,
        "of the inner size": checkpoint.intermediate_size,
    }
    if checkpoint.experts is not None:
        divided["of the experts' inner size"] = checkpoint.experts.intermediate_size
    for what, size in divided.items():
        if size % split.tensor:
            raise SplitError(
                f"{split.tensor} tensor ranks cannot share {size} {what}; possible are"
                f" {', '.join(str(n) for n in possible(checkpoint))}",
                "tensor",
            )
    if split.pipeline > checkpoint.num_layers:
        raise SplitError(f"{split.pipeline} stages for {checkpoint.num_layers} layers", "pipeline")


def possible(checkpoint: Checkpoint) -> list[int]:
    """The numbers of tensor ranks that the model's heads and sizes allow."""
    sizes = [checkpoint.num_heads, checkpoint.num_kv_heads, checkpoint.intermediate_size]
    if checkpoint.experts is not None:
        sizes.append(checkpoint.experts.intermediate_size)
    return [n for n in range(1, min(sizes) + 1) if all(size % n == 0 for size in sizes)]
