"""Small decisions: merging templates, explaining Pods, settling names, comparing documents."""

from typing import Any

import pytest

from slipstream_api.conditions import Reason
from slipstream_api.config import EngineConfig, parse
from slipstream_api.inferencemodel import InferenceModelSpec
from slipstream_operator import children, diagnosis, documents, revisions, template
from slipstream_operator.merge import MergeError, merge
from tests.operator import world

BASE = {
    "spec": {
        "containers": [
            {"name": "engine", "image": "a", "env": [{"name": "X", "value": "1"}]},
        ],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"key": "a"}],
    }
}


@pytest.mark.parametrize(
    ("patch", "path", "expected"),
    [
        ({"spec": {"containers": [{"name": "engine", "image": "b"}]}}, "image", "b"),
        ({"spec": {"containers": [{"name": "engine", "image": None}]}}, "image", None),
        (
            {"spec": {"containers": [{"name": "engine", "env": [{"name": "Y", "value": "2"}]}]}},
            "env",
            [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}],
        ),
        (
            {"spec": {"containers": [{"name": "engine", "env": [{"name": "X", "valueFrom": {}}]}]}},
            "env",
            [{"name": "X", "valueFrom": {}}],
        ),
    ],
)
def test_containers_merge_by_name(patch: dict[str, Any], path: str, expected: object) -> None:
    (container,) = merge(BASE, patch)["spec"]["containers"]
    assert container.get(path) == expected


def test_a_null_deletes_what_it_names() -> None:
    patch = {"spec": {"containers": [{"name": "engine", "image": None}], "tolerations": None}}
    result = merge(BASE, patch)["spec"]
    assert "image" not in result["containers"][0]
    assert "tolerations" not in result


def test_a_volume_with_another_source_replaces_the_old_one() -> None:
    patch = {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}}
    assert merge(BASE, patch)["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/x"}}]


def test_lists_of_unnamed_things_are_replaced() -> None:
    patch = {"spec": {"tolerations": [{"key": "b"}]}}
    assert merge(BASE, patch)["spec"]["tolerations"] == [{"key": "b"}]


def test_merging_changes_neither_side() -> None:
    before = documents.canonical(BASE)
    patch = {"spec": {"containers": [{"name": "side", "env": [{"name": "A"}]}]}}
    text = documents.canonical(patch)
    result = merge(BASE, patch)
    result["spec"]["containers"][1]["env"].append({"name": "B"})
    assert (documents.canonical(BASE), documents.canonical(patch)) == (before, text)


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"spec": {"containers": {}}}, "spec.containers"),
        ({"spec": {"containers": "engine"}}, "spec.containers"),
        ({"spec": {"containers": ["engine"]}}, "spec.containers[0]"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0].name"),
        ({"spec": "all"}, "spec"),
    ],
)
def test_a_template_of_the_wrong_shape_is_told_with_its_path(
    patch: dict[str, Any], field: str
) -> None:
    with pytest.raises(MergeError) as caught:
        merge(BASE, patch)
    assert caught.value.field == field


def spec(**changes: Any) -> InferenceModelSpec:
    base: dict[str, Any] = {"model": {"source": "file:///m.gguf"}}
    return InferenceModelSpec.model_validate({**base, **changes})


def test_aliases_scaling_and_written_out_defaults_change_no_spec_hash() -> None:
    same = [
        spec(),
        spec(model={"source": "file:///m.gguf", "aliases": ["a"]}),
        spec(scaling={"replicas": 7}),
        spec(engine={"runtime": "slipstream"}),
        spec(podTemplate={}),
    ]
    assert len({revisions.spec_hash(s) for s in same}) == 1


def test_everything_that_a_pod_is_made_from_changes_the_spec_hash() -> None:
    different = [
        spec(),
        spec(model={"source": "file:///other.gguf"}),
        spec(model={"source": "file:///m.gguf", "revision": "2"}),
        spec(model={"source": "file:///m.gguf", "maxContext": 4096}),
        spec(model={"source": "file:///m.gguf", "toolCallFormat": "hermes"}),
        spec(model={"source": "file:///m.gguf", "reasoningFormat": "none"}),
        spec(engine={"image": "x"}),
        spec(podTemplate={"metadata": {"labels": {"a": "b"}}}),
    ]
    assert len({revisions.spec_hash(s) for s in different}) == len(different)


def test_of_two_records_of_one_spec_the_newest_is_used() -> None:
    records = []
    for number, image in ((1, "engine:older"), (2, "engine:newer")):
        rendered = template.render("agents", "coder", spec(), world.settings(engine_image=image))
        records.append(
            children.controller_revision(
                world.model(), rendered, spec_hash=revisions.spec_hash(spec()), number=number
            )
        )
    for order in (records, records[::-1]):
        found = revisions.resolve("agents", "coder", spec(), order, world.settings())
        assert found.image == "engine:newer"


def test_the_engine_can_read_what_it_is_given() -> None:
    rendered = template.render("agents", "coder", spec(), world.settings())
    config = parse(EngineConfig, rendered.engine_config, origin="test")
    assert (config.model.namespace, config.model.name) == ("agents", "coder")
    assert config.revision == rendered.revision
    assert config.model.path == "/m.gguf"


def test_the_engine_is_told_the_formats_that_the_user_chose() -> None:
    chosen = {"toolCallFormat": "qwen3_coder", "reasoningFormat": "think"}
    rendered = template.render(
        "agents",
        "coder",
        spec(model={"source": "file:///m.gguf", **chosen}),
        world.settings(),
    )
    config = parse(EngineConfig, rendered.engine_config, origin="test")
    assert config.model.model_dump(include={"tool_call_format", "reasoning_format"}) == {
        "tool_call_format": "qwen3_coder",
        "reasoning_format": "think",
    }


def test_a_template_cannot_take_the_pods_identity_away() -> None:
    hostile = {"metadata": {"labels": {"slipstream.dev/model": "other", "mine": "kept"}}}
    rendered = template.render("agents", "coder", spec(podTemplate=hostile), world.settings())
    labels = rendered.pod_template["metadata"]["labels"]
    assert labels["slipstream.dev/model"] == "coder"
    assert labels["slipstream.dev/revision"] == rendered.revision
    assert labels["mine"] == "kept"


def pod(container: dict[str, Any], *conditions: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "n"},
        "status": {"containerStatuses": [container], "conditions": list(conditions)},
    }


STARTUP = '{"reason": "ConfigInvalid", "message": "unknown key", "field": "limits"}'


@pytest.mark.parametrize(
    ("container", "reason", "words"),
    [
        (
            {"state": {"waiting": {"reason": "ErrImagePull", "message": "denied"}}},
            "image",
            "denied",
        ),
        ({"state": {"waiting": {"reason": "InvalidImageName"}}}, "image", "InvalidImageName"),
        ({"state": {"waiting": {"reason": "ErrImageNeverPull", "message": "m"}}}, "image", "m"),
        (
            {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": "no key"}}},
            "container",
            "no key",
        ),
        (
            {"state": {"terminated": {"exitCode": 1, "message": STARTUP}}},
            "config",
            "unknown key (limits)",
        ),
        (
            {"state": {"terminated": {"exitCode": 139, "reason": "Error", "message": "boom"}}},
            "container",
            "boom",
        ),
        (
            {
                "restartCount": 1,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 2, "message": "last line"}},
            },
            "loop",
            "last line",
        ),
        (
            {
                "restartCount": 5,
                "state": {"running": {}},
                "lastState": {"terminated": {"exitCode": 2}},
            },
            "loop",
            "exit code 2",
        ),
    ],
)
def test_a_pod_that_fails_is_explained(container: dict[str, Any], reason: str, words: str) -> None:
    expected = {
        "image": Reason.IMAGE_PULL_FAILED,
        "container": Reason.CONTAINER_FAILED,
        "config": Reason.CONFIG_INVALID,
        "loop": Reason.CRASH_LOOP,
    }[reason]
    finding = diagnosis.explain(pod(container), world.START)
    assert finding is not None
    assert finding.reason is expected
    assert words in finding.message


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('0/1 nodes: persistentvolumeclaim "weights" not found. not found', Reason.CLAIM_NOT_FOUND),
        (
            "0/1 nodes: pod has unbound immediate PersistentVolumeClaims. not found",
            Reason.UNSCHEDULABLE,
        ),
        ("0/1 nodes: 1 Insufficient memory.", Reason.UNSCHEDULABLE),
    ],
)
def test_a_claim_that_waits_for_its_volume_is_not_called_missing(
    message: str, reason: Reason
) -> None:
    waiting = {"type": "PodScheduled", "status": "False", "message": message}
    finding = diagnosis.explain(pod({}, waiting), world.START)
    assert finding is not None
    assert finding.reason is reason


@pytest.mark.parametrize(
    "container",
    [
        {"state": {"waiting": {"reason": "ContainerCreating"}}},
        {"state": {"waiting": {"reason": "PodInitializing"}}},
        {"state": {"running": {}}},
    ],
)
def test_a_pod_on_its_way_is_no_failure(container: dict[str, Any]) -> None:
    assert diagnosis.explain(pod(container), world.START) is None


@pytest.mark.parametrize(
    ("containers_ready", "gates", "reason"),
    [
        ("True", [], Reason.NODE_NOT_READY),
        ("False", [], None),
        ("True", [{"conditionType": "example.com/warm"}], None),
    ],
)
def test_pods_of_a_node_that_went_silent_do_not_start(
    containers_ready: str, gates: list[dict[str, str]], reason: Reason | None
) -> None:
    """The control plane takes Ready back; what the kubelet said of the containers stays."""
    lost = pod(
        {"ready": containers_ready == "True", "state": {"running": {}}},
        {"type": "ContainersReady", "status": containers_ready},
        {"type": "Ready", "status": "False"},
    )
    lost["spec"] = {"nodeName": "node7", "readinessGates": gates}
    finding = diagnosis.explain(lost, world.START)
    assert (finding.reason if finding is not None else None) == reason
    assert finding is None or "node7" in finding.message


def test_a_ready_pod_is_no_failure_whatever_happened_before() -> None:
    ended = {"lastState": {"terminated": {"exitCode": 1}}, "restartCount": 9}
    assert diagnosis.explain(pod(ended, {"type": "Ready", "status": "True"}), world.START) is None


@pytest.mark.parametrize(
    ("restarts", "ended_at", "reason"),
    [
        (9, "2026-11-01T11:59:00Z", Reason.CRASH_LOOP),
        (9, "2026-11-01T11:50:01Z", Reason.CRASH_LOOP),
        (1, "2026-11-01T11:59:01Z", Reason.CONTAINER_FAILED),
        (1, "2026-11-01T11:59:00Z", None),
        (9, "2026-11-01T11:50:00Z", None),
        (1, "2026-10-20T11:50:00Z", None),
    ],
)
def test_restarts_of_long_ago_are_no_crash_loop(
    restarts: int, ended_at: str, reason: Reason | None
) -> None:
    """A Pod that ran for days after them and is not ready for a moment has another problem."""
    ended = {"exitCode": 2, "finishedAt": ended_at}
    container = {
        "restartCount": restarts,
        "state": {"running": {"startedAt": ended_at}},
        "lastState": {"terminated": ended},
    }
    finding = diagnosis.explain(pod(container), world.START)
    assert (finding.reason if finding is not None else None) == reason


@pytest.mark.parametrize(
    ("unready_since", "restarts", "reason"),
    [
        # Ready until the crash, or not yet again since: the crash is why.
        ("2026-11-01T11:59:30Z", 1, Reason.CONTAINER_FAILED),
        ("2026-11-01T11:59:32Z", 1, Reason.CONTAINER_FAILED),
        # Ready in the present run until a moment ago: an outage, a slow probe, not the crash.
        ("2026-11-01T11:59:50Z", 1, None),
        ("2026-11-01T11:59:50Z", 9, None),
    ],
)
def test_a_crash_before_a_run_that_was_ready_is_not_why_it_is_not_ready_now(
    unready_since: str, restarts: int, reason: Reason | None
) -> None:
    container = {
        "name": "engine",
        "restartCount": restarts,
        "state": {"running": {"startedAt": "2026-11-01T11:59:30Z"}},
        "lastState": {"terminated": {"exitCode": 137, "finishedAt": "2026-11-01T11:59:28Z"}},
    }
    unready = {"type": "Ready", "status": "False", "lastTransitionTime": unready_since}
    finding = diagnosis.explain(pod(container, unready), world.START)
    assert (finding.reason if finding is not None else None) == reason


def starting(**container: Any) -> dict[str, Any]:
    """A Pod of ours whose engine runs for five minutes and is not ready."""
    document = pod(
        {
            "name": "engine",
            "ready": False,
            "started": False,
            "state": {"running": {"startedAt": "2026-11-01T11:55:00Z"}},
            **container,
        }
    )
    rendered = template.render("agents", "coder", spec(), world.settings())
    document["spec"] = rendered.pod_template["spec"]
    document["status"]["startTime"] = "2026-11-01T11:54:00Z"
    return document


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({}, "does not answer GET /health yet"),
        ({"started": True}, "container engine runs since 2026-11-01T11:55:00Z and does not"),
        ({"started": True}, "does not answer GET /ready"),
        (
            {"lastState": {"terminated": {"exitCode": 143, "finishedAt": "2026-11-01T11:54:59Z"}}},
            "GET /health yet; before: exit code 143",
        ),
        (
            {"state": {"waiting": {"reason": "ContainerCreating"}}},
            "waits for ContainerCreating since 2026-11-01T11:54:00Z",
        ),
        ({"state": {"running": {"startedAt": "2026-11-01T11:59:01Z"}}}, None),
        ({"ready": True}, None),
    ],
)
def test_a_long_start_is_told_with_what_it_waits_for(
    container: dict[str, Any], words: str | None
) -> None:
    document = starting(**container)
    assert diagnosis.explain(document, world.START) is None
    told = diagnosis.waiting([document], world.START)
    assert told is None if words is None else words in (told or "")


def test_an_init_container_that_takes_long_is_named() -> None:
    document = starting(state={"waiting": {"reason": "PodInitializing"}})
    running = {"running": {"startedAt": "2026-11-01T11:55:00Z"}}
    document["status"]["initContainerStatuses"] = [{"name": "fetch", "state": running}]
    told = diagnosis.waiting([document], world.START)
    assert told == "pod p: init container fetch runs since 2026-11-01T11:55:00Z"


@pytest.mark.parametrize(
    ("began", "due_s"),
    [
        ("2026-11-01T11:59:50Z", 50.0),
        ("2026-11-01T11:58:00Z", 480.0),
        ("2026-11-01T11:49:00Z", None),
    ],
)
def test_a_pass_comes_when_time_alone_changes_what_is_said(began: str, due_s: float | None) -> None:
    document = starting(state={"running": {"startedAt": began}})
    document["status"]["startTime"] = "2026-11-01T11:40:00Z"
    assert diagnosis.due_after_s([document], world.START) == due_s


@pytest.mark.parametrize(
    ("name", "where", "prefix"),
    [
        ("fetch", "initContainerStatuses", "init container fetch: "),
        ("logs", "containerStatuses", "container logs: "),
        ("engine", "containerStatuses", ""),
    ],
)
def test_a_failing_container_is_named_unless_it_is_the_engine(
    name: str, where: str, prefix: str
) -> None:
    ended = {"terminated": {"exitCode": 1, "message": "no such host"}}
    document = pod({"name": "engine", "state": {"waiting": {"reason": "PodInitializing"}}})
    document["status"][where] = [{"name": name, "state": ended}]
    finding = diagnosis.explain(document, world.START)
    assert finding is not None
    assert finding.message == f"{prefix}exit code 1 (Error), restarts: 0: no such host"


def test_an_init_container_that_needed_many_attempts_and_is_done_is_no_failure() -> None:
    document = pod({"name": "engine", "state": {"waiting": {"reason": "PodInitializing"}}})
    document["status"]["initContainerStatuses"] = [
        {"name": "fetch", "restartCount": 5, "state": {"terminated": {"exitCode": 0}}}
    ]
    assert diagnosis.explain(document, world.START) is None


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("model.path", "spec.model.source"),
        ("model.maxContext", "spec.model.maxContext"),
        ("server.port", "server.port"),
    ],
)
def test_a_field_of_the_engine_is_told_by_the_path_that_its_user_knows(
    field: str, path: str
) -> None:
    told = f'{{"reason": "ModelInvalid", "message": "no", "field": "{field}"}}'
    ended = pod({"state": {"terminated": {"exitCode": 1, "message": told}}})
    finding = diagnosis.explain(ended, world.START)
    assert finding is not None
    assert finding.message == f"no ({path})"


def test_a_container_that_the_kubelet_holds_back_is_a_loop_whatever_the_time() -> None:
    container = {
        "restartCount": 9,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 2, "finishedAt": "2026-10-01T00:00:00Z"}},
    }
    finding = diagnosis.explain(pod(container), world.START)
    assert finding is not None
    assert finding.reason is Reason.CRASH_LOOP


def test_an_engine_whose_process_ran_out_of_memory_says_so() -> None:
    """The engine sees a killed process and writes that; the kubelet knows what killed it."""
    told = '{"reason": "ContainerFailed", "message": "a process was ended by SIGKILL", "field": ""}'
    ended = pod({"state": {"terminated": {"exitCode": 1, "reason": "OOMKilled", "message": told}}})
    finding = diagnosis.explain(ended, world.START)
    assert finding is not None
    assert finding.message.startswith("a process was ended by SIGKILL: out of memory")


def test_a_long_log_is_shown_by_its_end() -> None:
    log = "first line\n" + "noise\n" * 500 + "the last line says why"
    ended = pod({"state": {"terminated": {"exitCode": 1, "message": log}}})
    finding = diagnosis.explain(ended, world.START)
    assert finding is not None
    assert finding.message.endswith("the last line says why")
    assert "first line" not in finding.message


@pytest.mark.parametrize(
    ("observed", "desired", "covered"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]}, True),
        ({}, {"a": []}, True),
        ({}, {"a": {}}, True),
        (None, {"a": 1}, False),
    ],
)
def test_covers_tells_whether_an_apply_would_change_anything(
    observed: object, desired: object, covered: bool
) -> None:
    assert documents.covers(observed, desired) is covered


def test_a_digest_frames_its_parts() -> None:
    assert documents.digest("ab", "c") != documents.digest("a", "bc")
