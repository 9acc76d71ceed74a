"""Apply a model, wait until it is Ready, and talk to it through the gateway."""

import os
import re
from pathlib import Path

import httpx
import openai
import pytest

from slipstream_cli.kubectl import Cluster
from tests.e2e.conftest import SETTLE_LIMIT_S, Models, chat, kill_container, wait

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_an_applied_model_becomes_ready_and_streams_an_answer(
    models: Models, gateway_url: str
) -> None:
    models.apply("solo", model__aliases=["solo-alias"])
    models.wait_ready("solo")
    client = openai.OpenAI(base_url=f"{gateway_url}/v1", api_key="unused", timeout=120)
    for name in ("solo", "solo-alias", f"{models.namespace}/solo"):
        wait_served(gateway_url, name)
        pieces: list[str] = []
        completion_tokens = 0
        for chunk in client.chat.completions.create(
            model=name,
            messages=[{"role": "user", "content": "Name the capital of France."}],
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        ):
            if chunk.usage is not None:
                completion_tokens = chunk.usage.completion_tokens
            if chunk.choices:
                assert chunk.model == name
                pieces.append(chunk.choices[0].delta.content or "")
        assert "Paris" in "".join(pieces)
        assert completion_tokens > 0
        assert len([p for p in pieces if p]) > 1
    (pod,) = models.pods("solo")
    log = models.kubectl("logs", pod["metadata"]["name"])
    source = re.search(r"products by ([\w-]+)", log)
    assert source is not None, log
    # On a node that is this machine: what was compiled here is seen in the Pod.
    if "SLIPSTREAM_KUBECONFIG" not in os.environ and " avx2 " in Path("/proc/cpuinfo").read_text():
        assert source[1].startswith("native-")


def test_two_models_stand_side_by_side_and_the_gateway_lists_both(
    models: Models, gateway_url: str
) -> None:
    models.apply("left", model__maxContext=512)
    models.apply("right", model__maxContext=1024)
    models.wait_ready("left")
    models.wait_ready("right")
    for name in ("left", "right"):
        wait_served(gateway_url, name)
        answer = chat(gateway_url, name, "Name the capital of France.")
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == name
        assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    listed = {m["id"] for m in httpx.get(f"{gateway_url}/v1/models", timeout=10).json()["data"]}
    assert {"left", "right"} <= listed
    # Each engine has its own limit: the request that fits one is refused by the other.
    long = "word " * 700
    refused = chat(gateway_url, "left", long)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert chat(gateway_url, "right", long).status_code == 200


def test_an_unknown_model_is_404_and_a_model_without_replicas_503(
    models: Models, gateway_url: str
) -> None:
    unknown = chat(gateway_url, "nobody-serves-this", "hi")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "model_not_found"
    models.apply("asleep", scaling__replicas=0)
    models.wait_reason("asleep", "ScaledToZero")
    wait(
        lambda: chat(gateway_url, "asleep", "hi").status_code == 503,
        "503 for a model with no replica",
        SETTLE_LIMIT_S,
    )
    assert int(chat(gateway_url, "asleep", "hi").headers["retry-after"]) > 0


def test_a_killed_engine_recovers_and_the_status_tells_the_truth_meanwhile(
    models: Models, installed: Cluster, gateway_url: str
) -> None:
    models.apply("phoenix")
    models.wait_ready("phoenix")
    pod = models.pods("phoenix")[0]["metadata"]["name"]
    kill_container(installed, models.namespace, pod)
    wait(
        lambda: models.condition("phoenix", "Ready")["status"] == "False",
        "Ready=False while the engine is down",
        SETTLE_LIMIT_S,
        lambda: str(models.get("phoenix")["status"]),
    )
    assert models.get("phoenix")["status"].get("readyReplicas", 0) == 0
    models.wait_ready("phoenix")
    assert models.pods("phoenix")[0]["metadata"]["name"] == pod
    wait_served(gateway_url, "phoenix")
    assert chat(gateway_url, "phoenix", "hi").status_code == 200


def test_scale_one_two_one_by_kubectl_keeps_the_first_replica(
    models: Models, gateway_url: str
) -> None:
    models.apply("elastic")
    models.wait_ready("elastic")
    first = models.pods("elastic")[0]["metadata"]["uid"]
    models.kubectl("scale", "inferencemodel", "elastic", "--replicas=2")
    wait(lambda: len(models.pods("elastic")) == 2, "a second Pod", SETTLE_LIMIT_S)
    models.wait_ready("elastic")
    assert models.get("elastic")["status"]["readyReplicas"] == 2
    models.kubectl("scale", "inferencemodel", "elastic", "--replicas=1")
    wait(
        lambda: [p["metadata"]["uid"] for p in models.pods("elastic")] == [first],
        "the first Pod alone",
        SETTLE_LIMIT_S,
        lambda: str([p["metadata"]["name"] for p in models.pods("elastic")]),
    )
    models.wait_ready("elastic")
    assert chat(gateway_url, "elastic", "hi").status_code == 200


def wait_served(url: str, model: str) -> None:
    """Ready is the operator's word; the gateway follows its own watch a moment later."""
    wait(
        lambda: chat(url, model, "hi", max_tokens=1).status_code == 200,
        f"{model} served",
        SETTLE_LIMIT_S,
        lambda: chat(url, model, "hi", max_tokens=1).text,
    )
