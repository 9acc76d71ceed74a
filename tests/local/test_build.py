"""Programs are built once per content, with a line about what is going on; inputs are pinned."""

import io
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from slipstream_local import build, gomods, prerequisites
from slipstream_local.errors import BuildError, PrerequisiteError
from slipstream_local.gomods import GO_DIR
from slipstream_local.progress import Progress


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No program built yet; the compiler's own cache stays, or every test would fill a new one."""
    asked = subprocess.run(["go", "env", "GOCACHE"], capture_output=True, text=True, check=True)
    monkeypatch.setenv("GOCACHE", asked.stdout.strip())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


PAUSE = build.BY_NAME["pause"]


def go_mod(module: str) -> str:
    return (GO_DIR / module / "go.mod").read_text()


def test_every_pinned_version_is_the_one_in_its_go_mod() -> None:
    versions = tomllib.loads((GO_DIR / "versions.toml").read_text())["modules"]
    assert set(versions) == {program.module for program in build.PROGRAMS}
    for name, module in versions.items():
        if "main" in module:
            assert re.search(
                rf"^(?:require |\t){re.escape(module['main'])} {re.escape(module['version'])}\b",
                go_mod(name),
                re.MULTILINE,
            ), name
            assert (
                f"{module['main']} {module['version']} h1:"
                in (GO_DIR / name / "go.sum").read_text()
            ), name


def test_kubernetes_staging_modules_are_all_replaced_by_the_matching_release() -> None:
    replaced = re.findall(r"^\t(k8s\.io/\S+) => (\S+) (\S+)$", go_mod("kube"), re.MULTILINE)
    required = set(
        re.findall(r"^\t(k8s\.io/\S+) v0\.(?:0\.0|36\.\d+)(?: |$)", go_mod("kube"), re.MULTILINE)
    )
    assert required
    assert required <= {old for old, _, _ in replaced}
    assert all(old == new for old, new, _ in replaced)
    expected = gomods.staging_version(build.module_version("kube"))
    assert {version for _, _, version in replaced} == {expected}


UPSTREAM = """module k8s.io/kubernetes
godebug default=go1.26
require (
\tgo.etcd.io/etcd/client/v3 v3.6.8
\tk8s.io/api v0.0.0
\tk8s.io/client-go v0.0.0
\tk8s.io/klog/v2 v2.140.0
)
"""


def test_a_go_mod_is_made_from_what_upstream_requires() -> None:
    module = {
        "main": "k8s.io/kubernetes",
        "version": "v1.36.3",
        "etcd_client": "go.etcd.io/etcd/client/v3",
        "etcd_server": "go.etcd.io/etcd/server/v3",
    }
    made = gomods.render("kube", module, "1.26.0", UPSTREAM)
    assert "godebug default=go1.26" in made
    assert "\tgo.etcd.io/etcd/server/v3 v3.6.8\n" in made
    assert "\tk8s.io/api => k8s.io/api v0.36.3\n" in made
    assert "klog" not in made
    with pytest.raises(ValueError, match="not required"):
        gomods.required_version(UPSTREAM, "example.com/unknown")


def test_kubernetes_programs_carry_their_version() -> None:
    flags = build.link_flags(build.BY_NAME["kube"], "v1.36.3")
    assert "-X k8s.io/component-base/version.gitVersion=v1.36.3" in flags
    assert "gitMajor=1 " in flags
    assert "gitMinor=36" in flags


@pytest.mark.parametrize("changed", ["go.mod", "go.sum", "main.go", "new.go"])
def test_any_change_of_the_inputs_is_another_program(tmp_path: Path, changed: str) -> None:
    shutil.copytree(GO_DIR, tmp_path / "go")
    before = build.content_hash(build.BY_NAME["kube"], "v1", tmp_path / "go")
    assert before == build.content_hash(build.BY_NAME["kube"], "v1", tmp_path / "go")
    with (tmp_path / "go" / "kube" / changed).open("a") as file:
        file.write("// changed\n")
    assert build.content_hash(build.BY_NAME["kube"], "v1", tmp_path / "go") != before
    other = build.content_hash(PAUSE, "v1", tmp_path / "go")
    assert other == build.content_hash(PAUSE, "v1")


def test_programs_of_one_module_do_not_share_a_folder() -> None:
    folders = {build.path_of(program.name).parent for program in build.PROGRAMS}
    assert len(folders) == len(build.PROGRAMS)


def test_the_cache_follows_xdg() -> None:
    assert build.cache_dir({"XDG_CACHE_HOME": "/c"}) == Path("/c/slipstream/bin")
    assert build.cache_dir({"HOME": "/h"}) == Path("/h/.cache/slipstream/bin")


def test_a_program_is_built_once_and_its_progress_is_told(empty_cache: Path) -> None:
    told = io.StringIO()
    first = build.ensure(["pause"], Progress(told))["pause"]
    assert "building pause (1 of 1, 0 left after it)" in told.getvalue()
    assert first.is_relative_to(empty_cache)
    made = first.stat().st_mtime_ns
    told = io.StringIO()
    assert build.ensure(["pause"], Progress(told)) == {"pause": first}
    assert told.getvalue() == ""
    assert first.stat().st_mtime_ns == made
    assert not list(empty_cache.rglob(".building-*"))


def test_two_builders_at_once_build_one_program(empty_cache: Path) -> None:
    argv = [sys.executable, "-m", "slipstream_local.build", "--only", "pause", "--paths"]
    both = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len({out for out, _ in outputs}) == 1
    assert sum("built pause" in err for _, err in outputs) == 1
    assert len(list(empty_cache.rglob("pause"))) == 1


def test_what_a_killed_build_left_goes_with_the_next(empty_cache: Path) -> None:
    target = build.path_of("pause")
    stale = target.parent.parent / f".building-{target.parent.name}-dead"
    stale.mkdir(parents=True)
    build.ensure(["pause"], Progress(io.StringIO()))
    assert not stale.exists()
    assert empty_cache.is_dir()


def test_a_failed_build_shows_the_compilers_words_and_leaves_nothing(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(GO_DIR / "pause", tmp_path / "go" / "pause")
    (tmp_path / "go" / "pause" / "main.go").write_text("package main\n\nfunc main() { nonsense }\n")
    monkeypatch.setattr(build, "GO_DIR", tmp_path / "go")
    with pytest.raises(BuildError, match="nonsense"):
        build.ensure(["pause"], Progress(io.StringIO()))
    assert not list(empty_cache.rglob("pause"))


def test_building_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; from slipstream_local import build; "
        "print(sorted(n for n in sys.modules if n.partition('.')[0] in "
        "('cryptography', 'yaml', 'rich', 'typer', 'pydantic')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_program_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build.main(["--only", "kube,windows"])
    assert "windows" in capsys.readouterr().err


def test_a_machine_without_go_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PrerequisiteError, match=r"Install Go 1\.26"):
        prerequisites.check_go()


def test_an_old_go_is_told_from_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "go"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    fake.write_text("#!/bin/sh\necho go1.25.9\n")
    fake.chmod(0o755)
    with pytest.raises(PrerequisiteError, match=r"too old \(go1\.25\.9\)"):
        prerequisites.check_go()
    fake.write_text("#!/bin/sh\necho go1.99\n")
    prerequisites.check_go()


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerequisites, "CNI_DIRS", (tmp_path,))
    assert "containernetworking-plugins" in prerequisites.missing_packages()


def test_without_apt_the_person_is_told_which_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prerequisites, "CNI_DIRS", (tmp_path,))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PrerequisiteError, match="containernetworking-plugins"):
        prerequisites.ensure_node_packages(Progress(io.StringIO()))
