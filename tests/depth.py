"""How many cases a generating test takes where the profile's number is not the right one."""

from hypothesis import settings

_NORMAL = settings.get_profile("normal").max_examples


def cases(normal: int) -> settings:
    """So many in `make test`; in `make test-full` as many times more as other tests take."""
    return settings(max_examples=normal * settings().max_examples // _NORMAL)
