"""The configuration file of the prefix cache, read as `slipstream_api.config` reads them all."""

from typing import Literal, Self

from pydantic import Field, model_validator

from slipstream_api import names
from slipstream_api.schema import ConfigModel

_MIB = 1024 * 1024


class CacheConfig(ConfigModel):
    """`/etc/slipstream/cache.json`."""

    schema_version: Literal[1]
    # Loopback unless told otherwise: the token is all that keeps others out, and it is not
    # encrypted on its way.
    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=7000, ge=0, le=65535)
    # /metrics, /healthz and /readyz.
    health_port: int = Field(default=9090, ge=0, le=65535)
    token_dir: str = Field(default=names.TOKEN_DIR, description="Folder with names.TOKEN_KEYS.")
    max_bytes: int = Field(ge=1, description="Of all stored pages together.")
    # A tenant over its share loses pages of its own. None: the whole cache.
    tenant_max_bytes: int | None = Field(default=None, ge=1)
    # 64 tokens of a 70B model in bfloat16 on one rank are 21 MB.
    max_page_bytes: int = Field(default=32 * _MIB, ge=1, le=1024 * _MIB)
    max_keys: int = Field(default=1024, ge=1, le=65536, description="Of one request.")
    max_connections: int = Field(default=256, ge=1, le=65536)
    # Pages being received or sent, beside the stored ones.
    max_in_flight_bytes: int = Field(default=256 * _MIB, ge=1)
    hello_timeout_s: int = Field(default=5, ge=1, le=60)
    # For one page, or for one message without its pages.
    io_timeout_s: int = Field(default=10, ge=1, le=600)
    idle_timeout_s: int = Field(default=600, ge=1, le=86400)
    drain_timeout_s: int = Field(default=10, ge=0, le=3600)

    @model_validator(mode="after")
    def _one_page_must_fit(self) -> Self:
        if self.max_in_flight_bytes < self.max_page_bytes:
            raise ValueError("maxInFlightBytes is less than maxPageBytes: no such page could pass")
        return self
