"""A bundle is used only when its bytes and every one of its answers are right."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream_kernels import bundle, dispatch, weights
from slipstream_kernels.bundle import BundleError
from slipstream_kernels.dispatch import Kernels

_CPU = torch.device("cpu")
_GOOD = """
import torch

def rms_norm(x, weight, eps):
    wide = x.float()
    return weight * (wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()).to(x.dtype)
"""


def write(folder: Path, source: str = _GOOD, operation: str = "rms_norm", **changes: Any) -> str:
    """A bundle of one operation, a norm unless told; its digest."""
    entry = {
        "file": "norm.py",
        "function": "rms_norm",
        "shapes": [{"tokens": 1, "size": 32}, {"tokens": 5, "size": 48}],
        "dtypes": ["float32", "bfloat16"],
    }
    entry.update(changes)
    manifest = {"schemaVersion": 1, "name": "tried", "operations": {operation: entry}}
    folder.mkdir(exist_ok=True)
    (folder / "norm.py").write_text(source)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return bundle.digest(bundle.read(folder))


def load(folder: Path, sha256: str) -> Kernels:
    return dispatch.with_bundle(Kernels(), folder, sha256, _CPU)


def test_a_good_bundle_replaces_its_operations_and_no_other(tmp_path: Path) -> None:
    sha256 = write(tmp_path)
    kernels = load(tmp_path, sha256)
    assert kernels.sources()["rms_norm"] == f"tried@{sha256[:12]}"
    assert {v for k, v in kernels.sources().items() if k != "rms_norm"} == {"reference"}
    x = torch.randn(2, 32)
    answer = kernels.rms_norm(x, torch.ones(32), 1e-5)
    assert torch.allclose(answer, torch.nn.functional.rms_norm(x, (32,), None, 1e-5), atol=1e-6)


_BAD = {
    "wrong": ("return weight *", "return 1.01 * weight *", "differs by"),
    "nan": ("return weight *", "return float('nan') * weight *", "differs by nan"),
    "other type": (".to(x.dtype)", "", "instead of"),
    "another shape": (
        "wide = x.float()",
        "wide = x[:, 1:].float(); weight = weight[1:]",
        "instead of",
    ),
    "raises": ("wide = x.float()", "raise RuntimeError('no such card')", "no such card"),
    "writes to its input": ("wide = x.float()", "wide = x.float(); x.mul_(2)", "differs by"),
    "remembers": (
        "def rms_norm(x, weight, eps):",
        (
            "kept = {}\n\ndef rms_norm(x, weight, eps):\n"
            "    return kept.setdefault((x.shape, x.dtype), fresh(x, weight, eps))\n\n"
            "def fresh(x, weight, eps):"
        ),
        "differs by",
    ),
    "exits": ("wide = x.float()", "raise SystemExit(3)", "SystemExit: 3"),
    "exits at once": ("import torch", "raise SystemExit(0)", "SystemExit: 0"),
    "no import": ("import torch", "import no_such_module", "no_such_module"),
    "not Python": ("import torch", "import torch torch", "SyntaxError"),
    "answers nothing": ("return weight *", "weight *", "NoneType instead of a tensor"),
}


@pytest.mark.parametrize(("old", "new", "message"), _BAD.values(), ids=_BAD)
def test_a_bundle_with_one_bad_answer_is_not_used_at_all(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in _GOOD
    sha256 = write(tmp_path, _GOOD.replace(old, new))
    with pytest.raises(BundleError, match=message):
        load(tmp_path, sha256)


def test_a_shape_too_large_for_any_memory_is_refused(tmp_path: Path) -> None:
    sha256 = write(tmp_path, shapes=[{"tokens": 1_048_576, "size": 1_048_576}])
    with pytest.raises(BundleError, match="too large to be tried"):
        load(tmp_path, sha256)


def test_a_changed_byte_is_noticed_before_anything_runs(tmp_path: Path) -> None:
    sha256 = write(tmp_path)
    (tmp_path / "norm.py").write_text("raise SystemExit('must not run')")
    with pytest.raises(BundleError, match="has the digest"):
        load(tmp_path, sha256)


def test_names_of_files_are_part_of_the_digest(tmp_path: Path) -> None:
    sha256 = write(tmp_path)
    (tmp_path / "norm.py").rename(tmp_path / "morn.py")
    assert bundle.digest(bundle.read(tmp_path)) != sha256
    assert bundle.digest({"a": b"bc"}) != bundle.digest({"ab": b"c"})


def test_links_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "bundle")
    (tmp_path / "bundle" / "link.py").symlink_to(tmp_path / "bundle" / "norm.py")
    with pytest.raises(BundleError, match="not a plain file"):
        bundle.read(tmp_path / "bundle")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"file": "../norm.py"}, "no file"),
        ({"file": "other.py"}, "no file"),
        ({"function": "missing"}, "no function"),
        ({"function": "torch"}, "norm.py has no function|not callable"),
        ({"shapes": []}, "shapes"),
        ({"shapes": [{"tokens": 1}]}, "expected tokens, size"),
        ({"shapes": [{"tokens": 1, "size": 0}]}, "size"),
        ({"dtypes": ["float8"]}, "dtypes"),
        ({"speed": 3}, "speed"),
    ],
    ids=str,
)
def test_a_bad_manifest_says_where(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    sha256 = write(tmp_path, **changes)
    with pytest.raises(BundleError, match=message):
        load(tmp_path, sha256)


def test_an_operation_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["operations"]["soft_max"] = manifest["operations"]["rms_norm"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    sha256 = bundle.digest(bundle.read(tmp_path))
    with pytest.raises(BundleError, match="soft_max"):
        load(tmp_path, sha256)


def test_a_folder_that_is_not_there_or_has_no_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="not a folder"):
        load(tmp_path / "nowhere", "0" * 64)
    with pytest.raises(BundleError, match=r"no manifest\.json"):
        load(tmp_path, bundle.digest({}))


_ATTENTION = """
from slipstream_kernels import reference
from slipstream_kernels.reference import Span

def attention(query, keys, values, spans):
    return reference.paged_attention(query, keys, values, spans)
"""


def test_attention_that_knows_no_trees_is_refused(tmp_path: Path) -> None:
    shape = {"tokens": 5, "context": 9, "heads": 2, "kv_heads": 1, "head_dim": 8}
    blind = _ATTENTION.replace("spans)\n", "[Span(s.start, s.end, s.runs) for s in spans])\n")
    assert blind.count("Span(") == 1
    for source in (_ATTENTION, blind):
        sha256 = write(
            tmp_path, source, function="attention", operation="paged_attention", shapes=[shape]
        )
        if source is blind:
            with pytest.raises(BundleError, match="differs by"):
                load(tmp_path, sha256)
        else:
            assert load(tmp_path, sha256).sources()["paged_attention"].startswith("tried@")


_PRODUCT = """
import torch

def linear(x, weight, bias):
    return torch.nn.functional.linear(x, weight, bias)
"""


def test_a_bundle_gets_no_matrices_in_codes_since_none_were_tried(tmp_path: Path) -> None:
    sha256 = write(
        tmp_path,
        _PRODUCT,
        function="linear",
        operation="linear",
        shapes=[{"tokens": 2, "rows": 16, "cols": 32}],
    )
    kernels = load(tmp_path, sha256)
    assert kernels.sources()["linear"] == f"tried@{sha256[:12]}, packed by reference"
    codes = torch.ones(16, 32, dtype=torch.uint8)
    packed = weights.pack(codes, torch.ones(16, 1), torch.zeros(16, 1), 4)
    x = torch.ones(1, 32)
    assert kernels.linear(x, packed, None).tolist() == [[32.0] * 16]
    assert kernels.linear(x, packed.unpacked(), None).tolist() == [[32.0] * 16]


def test_every_operation_has_a_definition_whose_reference_passes() -> None:
    from slipstream_kernels.definitions import DEFINITIONS
    from slipstream_kernels.verify import verify

    assert set(DEFINITIONS) == set(dispatch.OPERATIONS)
    sizes = {
        "tokens": 3,
        "size": 8,
        "rows": 5,
        "cols": 6,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "context": 9,
        "experts": 4,
        "active": 2,
        "hidden": 8,
    }
    for name, definition in DEFINITIONS.items():
        shape = {dimension: sizes[dimension] for dimension in definition.dimensions}
        verify(name, definition.reference, shape, torch.float32, _CPU)
