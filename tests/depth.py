"""How many cases a generating test takes where the profile's number is not the right one."""

from hypothesis import settings

_NORMAL = settings.get_profile("normal").max_examples


def cases(normal: int, full: int | None = None) -> settings:
    """So many in `make test`; in `make test-full` `full`, or as many times more as others take."""
    current = settings().max_examples
    if full is not None and current > _NORMAL:
        return settings(max_examples=full)
    return settings(max_examples=normal * current // _NORMAL)
