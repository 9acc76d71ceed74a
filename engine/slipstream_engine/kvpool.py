"""The tensors behind the pages: the one place that holds keys and values."""

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream_kvstore.layout import PageLayout

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class KvPool:
    """One tensor per pool of the layout: [layers, rows, KV heads, head_dim].

    Page p holds rows [p * page_tokens ─ (p + 1) * page_tokens). One page more than `num_pages`
    is nobody's: what fills up a recorded step may write there.
    """

    def __init__(self, layout: PageLayout, num_pages: int, device: torch.device) -> None:
        self.layout = layout
        self.num_pages = num_pages
        self.spare_page = num_pages
        # Not zeroed: a page's memory is taken by the first token that is written to it.
        self._tensors: dict[str, Tensor] = {}
        self._layers: dict[str, list[Tensor]] = {}
        for pool in layout.pools:
            layers, *inner = pool.token_shape
            shape = (layers, (num_pages + 1) * layout.page_tokens, *inner)
            tensor = torch.empty(shape, dtype=_DTYPES[pool.dtype], device=device)
            self._tensors[pool.name] = tensor
            # One view a layer, made once: a step takes two of each.
            self._layers[pool.name] = list(tensor)

    def layer(self, name: str, index: int) -> Tensor:
        """One layer of one pool: [rows, KV heads, head_dim]."""
        return self._layers[name][index]

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy rows, (source, target) each, all at once: a target may be another one's source."""
        if not pairs:
            return
        sources = torch.tensor([source for source, _ in pairs])
        targets = torch.tensor([target for _, target in pairs])
        for tensor in self._tensors.values():
            tensor[:, targets] = tensor[:, sources]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages, (source, target) each; no page is a source and a target."""
        if not pairs:
            return
        sources = torch.tensor([source for source, _ in pairs])
        targets = torch.tensor([target for _, target in pairs])
        for tensor in self._tensors.values():
            layers, _, *inner = tensor.shape
            pages = tensor.view(layers, self.num_pages + 1, -1, *inner)
            pages[:, targets] = pages[:, sources]
