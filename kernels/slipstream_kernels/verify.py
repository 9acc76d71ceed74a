"""Whether an implementation of an operation answers as its reference does."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from slipstream_kernels.definitions import DEFINITIONS, TOLERANCES, Shape

# Fresh numbers each: an answer that was kept from an earlier call is found out.
_SEEDS = (11, 12)


class VerificationError(Exception):
    """The operation, the shape and what differs."""


def verify(
    operation: str,
    implementation: Callable[..., Any],
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Compare answers and every argument afterwards. Raises VerificationError."""
    definition = DEFINITIONS[operation]
    place = f"{operation} on {dict(shape)}, {str(dtype).removeprefix('torch.')}"
    for seed in _SEEDS:
        generator = torch.Generator().manual_seed(seed)
        try:
            arguments = _moved(definition.make(shape, dtype, generator), device)
            theirs = copy.deepcopy(arguments)
            expected = definition.reference(*arguments)
        except (RuntimeError, MemoryError) as error:
            raise VerificationError(f"{place}: too large to be tried: {error}") from error
        try:
            answer = implementation(*theirs)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        except (Exception, SystemExit) as error:
            # Foreign code: whatever it raises is a reason to refuse it.
            raise VerificationError(f"{place}: {type(error).__name__}: {error}") from error
        # Arguments too: in-place operations answer there, and others must leave them alone.
        _compare((expected, arguments), (answer, theirs), TOLERANCES[dtype], place)


def _compare(expected: Any, answer: Any, tolerance: float, place: str) -> None:
    if isinstance(expected, Tensor):
        _compare_tensors(expected, answer, tolerance, place)
    elif isinstance(expected, tuple | list):
        if not isinstance(answer, type(expected)) or len(answer) != len(expected):
            raise VerificationError(f"{place}: {type(answer).__name__} is not what was expected")
        for one, other in zip(expected, answer, strict=True):
            _compare(one, other, tolerance, place)
    elif expected != answer:
        raise VerificationError(f"{place}: {answer!r} instead of {expected!r}")


def _compare_tensors(expected: Tensor, answer: Any, tolerance: float, place: str) -> None:
    if not isinstance(answer, Tensor):
        raise VerificationError(f"{place}: {type(answer).__name__} instead of a tensor")
    if answer.shape != expected.shape or answer.dtype != expected.dtype:
        raise VerificationError(
            f"{place}: {list(answer.shape)} {answer.dtype} instead of {list(expected.shape)}"
            f" {expected.dtype}"
        )
    if not expected.is_floating_point() and not expected.is_complex():
        if not torch.equal(expected, answer):
            raise VerificationError(f"{place}: other integers")
        return
    wide = torch.complex128 if expected.is_complex() else torch.float64
    difference = (expected.to(wide) - answer.to(wide)).abs().max() if expected.numel() else 0.0
    allowed = tolerance * max(1.0, float(expected.abs().max())) if expected.numel() else 0.0
    # Written so that a difference that is not a number fails.
    if not float(difference) <= allowed:
        raise VerificationError(
            f"{place}: differs by {float(difference):.3g}, {allowed:.3g} allowed"
        )


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple | list):
        return type(value)(_moved(item, device) for item in value)
    return value
