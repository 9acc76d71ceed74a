"""Random streams by name: the same seed and name give the same stream on every machine."""

from random import Random


def rng_of(seed: object, name: str) -> Random:
    """Seeded by text, which Python hashes with SHA-512 whatever the hash seed of the process."""
    return Random(f"{seed}/{name}")  # noqa: S311  (not for secrets)
