"""The base of every document: camelCase outside, snake_case inside, unknown keys refused."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class KubeModel(BaseModel):
    """A part of a Kubernetes object. Frozen; unknown fields are errors with their path."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


class ConfigModel(KubeModel):
    """A part of a mounted configuration file. Same rules as a Kubernetes object."""
