"""Names that more than one component must agree on: groups, labels, ports, object names.

Knows no cluster: every function here takes names and returns names.
"""

import hashlib
from typing import Final

GROUP: Final = "slipstream.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

FIELD_MANAGER: Final = "slipstream-operator"
_GATEWAY_FIELD_MANAGER_PREFIX: Final = "slipstream-gateway-"
_FIELD_MANAGER_LEN: Final = 128

LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_PART_OF: Final = "app.kubernetes.io/part-of"
# What the chart's Pods carry whatever the release is called: NetworkPolicies know them by it.
PART_OF: Final = "slipstream"
MANAGED_BY: Final = "slipstream"

LABEL_MODEL: Final = f"{GROUP}/model"
LABEL_REVISION: Final = f"{GROUP}/revision"
LABEL_TRACK: Final = f"{GROUP}/track"
LABEL_ORDINAL: Final = f"{GROUP}/ordinal"
# Hash of the spec fields that a revision was rendered from: finds the revision again without
# rendering, so that a new chart default restarts nobody.
LABEL_SPEC_HASH: Final = f"{GROUP}/spec-hash"

TRACK_STABLE: Final = "stable"

ENGINE_CONTAINER: Final = "engine"
ENGINE_PORT: Final = 8000
GATEWAY_PORT: Final = 8080
OPERATOR_METRICS_PORT: Final = 9090
ENGINE_PORT_NAME: Final = "http"

CONFIG_DIR: Final = "/etc/slipstream"
MODELS_DIR: Final = "/models"
TERMINATION_LOG: Final = "/dev/termination-log"

TOKEN_SECRET: Final = "slipstream-internal-token"  # noqa: S105  (an object name)
TOKEN_DIR: Final = "/var/run/secrets/slipstream"  # noqa: S105  (a folder)
# Senders send the first; receivers accept each that is there, two at most (the operator's
# `rotation` says when), so that a rotation interrupts nobody.
TOKEN_KEYS: Final = ("current", "next", "previous")

# Headers that engines believe only together with a valid internal token.
HEADER_TOKEN: Final = "x-slipstream-token"  # noqa: S105  (a header name)
HEADER_MODEL: Final = "x-slipstream-model"
HEADER_TRACK: Final = "x-slipstream-track"
HEADER_SESSION: Final = "x-slipstream-session"
# Who may share cached pages with whom: set by the gateway from the tenant, never by a client.
HEADER_CACHE_SALT: Final = "x-slipstream-cache-salt"
HEADER_REQUEST_ID: Final = "x-request-id"

REVISION_LEN: Final = 10
MAX_REPLICAS: Final = 64
# <model>-<revision>-<ordinal> must stay a DNS label (63): 63 - 1 - 10 - 1 - 2.
MAX_MODEL_NAME_LEN: Final = 49


def revision_name(model: str, revision: str) -> str:
    """The ControllerRevision, ConfigMap and headless Service of one revision."""
    return f"{model}-{revision}"


def policy_name(model: str) -> str:
    """The NetworkPolicy of one model's engines; not the model's own name, which a person may
    have given to one of theirs."""
    return f"slipstream-{model}"


def pod_name(model: str, revision: str, ordinal: int) -> str:
    """The engine Pod of one replica: the same after every crash of the operator."""
    return f"{model}-{revision}-{ordinal}"


def qualified_name(namespace: str, name: str) -> str:
    """The name a client may always send, whoever owns the short one."""
    return f"{namespace}/{name}"


def gateway_field_manager(namespace: str, name: str) -> str:
    """Who owns what a gateway wrote into a ModelRoute's status.

    Another one for every gateway: what two of them shared, each would take from the other. The
    names alone may be longer than a manager's name.
    """
    digest = hashlib.sha256(f"{namespace}/{name}".encode()).hexdigest()[:16]
    room = _FIELD_MANAGER_LEN - len(_GATEWAY_FIELD_MANAGER_PREFIX) - len(digest) - 1
    return f"{_GATEWAY_FIELD_MANAGER_PREFIX}{name[:room]}-{digest}"
