"""From a configuration to what one rank needs to step: weights, pages, kernels, its group."""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from slipstream_api.config import ConfigError, EngineConfig
from slipstream_engine import device as devices
from slipstream_engine import drafting, draftloading, messages, processors, sizing
from slipstream_engine.costs import Runs
from slipstream_engine.group import Alone, Group, TorchGroup
from slipstream_engine.guides.interface import Guides
from slipstream_engine.kvpool import KvPool
from slipstream_engine.layers import Builder
from slipstream_engine.loop import EngineLoop
from slipstream_engine.messages import Loaded
from slipstream_engine.model import Decoder
from slipstream_engine.recorded import RecordedDecode
from slipstream_engine.runner import Runner
from slipstream_engine.scheduler import Limits, Scheduler
from slipstream_engine.sizing import Sizing
from slipstream_engine.spec.chooser import Member
from slipstream_engine.split import Split
from slipstream_kernels import dispatch, native
from slipstream_kernels.bundle import BundleError
from slipstream_kernels.dispatch import Kernels
from slipstream_kvstore import keys
from slipstream_kvstore.keys import Namespace
from slipstream_kvstore.layout import KvDtype
from slipstream_weights import source
from slipstream_weights.checkpoint import OpenCheckpoint, finite

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Part:
    """One rank, ready to step."""

    runner: Runner
    group: Group
    kernels: Kernels
    config: EngineConfig
    sizes: Sizing
    namespace: Namespace
    architecture: str
    load_s: float
    draft_model: Member | None = None

    def loop(self, runner: Runs, guides: Guides) -> EngineLoop:
        """The loop over this rank and all that follow it. Runs a few steps to measure them."""
        limits = Limits(
            max_running_sequences=self.config.limits.max_running_sequences,
            max_batch_tokens=self.config.limits.max_batch_tokens,
            page_tokens=self.config.pages.page_tokens,
            max_context=self.sizes.max_context,
            prefix_cache=self.config.pages.prefix_cache,
        )
        clock = time.perf_counter
        spec, model = self.config.speculator, self.draft_model
        speculation = drafting.make(spec, runner, limits, clock, model)
        root_key = keys.root_key(self.namespace)
        scheduler = Scheduler(limits, self.sizes.num_pages, root_key, speculation, guides)
        return EngineLoop(scheduler, runner, clock, speculation)

    def loaded(self) -> Loaded:
        return Loaded(
            architecture=self.architecture,
            max_context=self.sizes.max_context,
            num_pages=self.sizes.num_pages,
            page_bytes=self.sizes.layout.page_bytes,
            load_s=self.load_s,
            threads=torch.get_num_threads(),
            namespace=messages.encode_namespace(self.namespace),
            kernels=self.kernels.sources(),
        )


def load(config: EngineConfig, split: Split, rendezvous: str) -> Part:
    """Load one rank, then meet the others.

    Raises ConfigError, CheckpointError, PeerLostError.
    """
    began = time.monotonic()
    place = devices.find(split)
    device = place.torch_device
    library = native.best() if device.type == "cpu" else None
    # Ranks of one machine share its CPUs.
    num_threads = config.threads or max(1, processors.count() // split.num_ranks)
    torch.set_num_threads(num_threads)
    if library is not None:
        library.set_threads(num_threads)
    dtype = _DTYPES[config.dtype]
    opened = source.open_checkpoint(Path(config.model.path))

    def keeps_codes(opened: OpenCheckpoint) -> bool:
        """Without the kernels in C nothing multiplies by codes at a useful speed."""
        may = config.quantization == "checkpoint" and dtype is torch.float32
        return may and library is not None and opened.has_codes

    is_packed = keeps_codes(opened)
    # Rounding keys and values to half their bytes changes less than the weights' rounding did.
    kv_dtype: KvDtype = "bfloat16" if is_packed else config.dtype
    sizes = sizing.resolve(config, opened.checkpoint, split, kv_dtype)
    kernels = _kernels(config, device)
    tensors = finite(opened.packed_tensors() if is_packed else opened.tensors(), config.model.path)
    weights = Builder(opened.checkpoint, split, dtype, device).build(tensors)
    group = TorchGroup(split, rendezvous, device) if split.num_ranks > 1 else Alone()
    decoder = Decoder(opened.checkpoint, weights, split, group, kernels, dtype, device)
    pool = _pool(sizes, device)
    recorded = None
    if place.has_graphs and split.num_ranks == 1:
        recorded = RecordedDecode(
            decoder,
            pool,
            place,
            max_sequences=config.limits.max_running_sequences,
            max_pages=sizes.layout.pages_for(sizes.max_context),
        )
    draft_model = None
    if split.rank == 0:
        draft_model = draftloading.load(
            config, opened, kernels, device, is_packed=keeps_codes, clock=time.perf_counter
        )
    return Part(
        draft_model=draft_model,
        runner=Runner(decoder, pool, is_drawing=split.tensor_rank == 0, recorded=recorded),
        group=group,
        kernels=kernels,
        config=config,
        sizes=sizes,
        namespace=_namespace(config, opened, sizes, split),
        architecture=opened.checkpoint.architecture,
        load_s=time.monotonic() - began,
    )


def _pool(sizes: Sizing, device: torch.device) -> KvPool:
    """Raises ConfigError where there is no memory for it."""
    try:
        return KvPool(sizes.layout, sizes.num_pages, device)
    except RuntimeError as error:
        num_bytes = sizes.num_pages * sizes.layout.page_bytes
        words = f"no memory for {sizes.num_pages} pages of all layers, {num_bytes} bytes"
        raise ConfigError(words, "pages.kvBytes") from error


def _kernels(config: EngineConfig, device: torch.device) -> Kernels:
    kernels = dispatch.for_device(device)
    if config.kernels is None:
        return kernels
    try:
        return dispatch.with_bundle(
            kernels, Path(config.kernels.path), config.kernels.sha256, device
        )
    except BundleError as error:
        raise ConfigError(str(error), "kernels") from error


def _namespace(
    config: EngineConfig, opened: OpenCheckpoint, sizes: Sizing, split: Split
) -> Namespace:
    """What this rank's page keys start from."""
    return Namespace(
        weights_digest=_weights_mark(Path(config.model.path), repr(opened.checkpoint)),
        layout=sizes.layout,
        split=keys.Split(split.tensor, split.tensor_rank, split.pipeline, split.stage),
        kernel_bundle=None if config.kernels is None else config.kernels.sha256,
        engine_build=f"{config.dtype}/{config.quantization}/torch-{torch.__version__}",
    )


def _weights_mark(path: Path, description: str) -> str:
    """Names these files on this machine. Pages stay in this process, so it need be no digest."""
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return "files:" + hashlib.sha256(f"{description}{facts}".encode()).hexdigest()
