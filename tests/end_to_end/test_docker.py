"""docker/: the steps of the containers run without Docker, and linters check the files."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rerank.formats import read_queries
from tests.support.cli import environment_with, write_demo_collection
from tests.support.opensearch import unavailable
from tests.support.processes import output, run_program
from tests.support.service import wait_until
from tools.opensearch_node import (
    QUICK,
    VERSION,
    CannotRunError,
    Node,
    cache,
    distribution,
    free_port,
    java_home,
    with_plugins,
)
from tools.opensearch_plugin import build

yaml = pytest.importorskip("yaml", reason="PyYAML reads compose.yaml; pip install -e '.[dev]'")

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
STEPS = DOCKER / "steps.sh"
DOCKERFILE = (DOCKER / "Dockerfile").read_text("utf-8")
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))
YAMLLINT = "{extends: relaxed, rules: {line-length: {max: 110}}}"
STAGES = {
    part.split(" AS ")[1].split("\n")[0]: part for part in re.split(r"^FROM ", DOCKERFILE, flags=re.M)[1:]
}


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("hadolint", ["Dockerfile"]),
        ("shellcheck", ["steps.sh", "pin.sh"]),
        ("check-jsonschema", ["--builtin-schema", "vendor.compose-spec", "compose.yaml"]),
        ("yamllint", ["--strict", "-d", YAMLLINT, "compose.yaml"]),
    ],
    ids=["Dockerfile", "steps.sh", "compose.yaml by its schema", "compose.yaml by yamllint"],
)
def test_linters_report_no_problems(tool, args):
    found = shutil.which(tool, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{tool} is not installed; pip install -e '.[dev]'")
    output(found, *args, cwd=DOCKER)


def is_ignored(path: str) -> bool:
    """Return whether .dockerignore, which lists the included paths, excludes a path."""
    rules = (ROOT / ".dockerignore").read_text("utf-8").split("\n")
    let_in = [rule[1:] for rule in rules if rule.startswith("!")]
    assert "*" in rules
    return not any(path == rule or path.startswith(f"{rule}/") for rule in let_in)


def test_all_copied_files_exist():
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.M):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists(), line
            assert not is_ignored(source), line


def test_images_are_pinned_and_run_without_root():
    """Also, long-running images have a health check, and only the training image has torch."""
    bases = dict(re.findall(r"^ARG ([A-Z]+)=(\S+)$", DOCKERFILE, re.M))
    for base in re.findall(r"^FROM \$\{([A-Z]+)\}", DOCKERFILE, re.M):
        assert re.fullmatch(r"[a-z.-]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}", bases[base]), base
    for target in ("opensearch", "service", "train"):
        assert int(re.findall(r"^USER (.*)$", STAGES[target], re.M)[-1]) > 0
    for service in COMPOSE["services"].values():
        if service["restart"] != "no":
            assert 'CMD ["steps.sh", "healthy"' in STAGES[service["build"]["target"]]
    assert DOCKERFILE.count("requirements/train.txt") == STAGES["train"].count("requirements/train.txt")
    assert not re.search(r"^torch==", (DOCKER / "requirements" / "service.txt").read_text("utf-8"), re.M)


def test_compose_dockerfile_and_steps_agree():
    services = COMPOSE["services"]
    for name, service in services.items():
        for secret in service.get("secrets", ()):
            assert secret in COMPOSE["secrets"]
            assert f"/run/secrets/{secret}" in STEPS.read_text("utf-8")
        for volume in service["volumes"]:
            assert volume.split(":")[0] in COMPOSE["volumes"]
            stage = STAGES[service["build"]["target"]] if "build" in service else STAGES["service"]
            assert f"VOLUME {volume.split(':')[1]}" in stage + STAGES["service"]
        for other in service.get("depends_on", ()):
            assert other in services
        assert service["cap_drop"] == ["ALL"], name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
    assert f"OPENSEARCH_VERSION={VERSION}\n" in DOCKERFILE
    shown = re.findall(r"^#   steps.sh (\w+)", STEPS.read_text("utf-8"), re.M)
    used = [service["command"][0] for service in services.values() if "command" in service]
    used += re.findall(r'"(?:steps.sh)", "(\w+)"', DOCKERFILE)
    assert set(used) | {"plugin"} == set(shown)


def test_an_unknown_step_is_refused():
    done = run_program(STEPS, "dance")
    assert (done.returncode, done.stdout) == (2, "")
    assert "steps.sh healthy URL" in done.stderr


def steps(*args: object, check: bool = True, **env: object) -> subprocess.CompletedProcess[str]:
    """Run a step with this environment's command on the path."""
    return run_program(STEPS, *args, env={**os.environ, **environment(env)}, check=check)


def environment(env: dict[str, Any]) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in env.items()}}


@pytest.fixture(scope="module")
def token(tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("secrets") / "rerank_token"
    path.write_text(secrets.token_hex(32) + "\n")
    return path


@pytest.fixture(scope="module")
def opensearch(token) -> Iterator[Node]:
    """The contents of the OpenSearch image, started by its entry point."""
    try:
        home = with_plugins(distribution(), [])
        java = java_home()
        archive = build()
    except CannotRunError as error:
        unavailable(error)
    entry = Path(tempfile.mkdtemp(prefix="entry-", dir=cache()))  # readable by the user nobody
    try:
        steps("plugin", home, archive, OPENSEARCH_JAVA_HOME=java, JDK_JAVA_OPTIONS=" ".join(QUICK[:2]))
        for path in (home / "plugins").rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        shutil.copy(STEPS, entry / "steps.sh")
        shutil.copy(token, entry / "token")
        (entry / "token").chmod(0o644)
        (entry / "config").symlink_to(home / "config")
        (entry / "bin").mkdir()
        settings = f"OPENSEARCH_HOME={home} TOKEN_FILE={entry}/token SERVICE_URL=http://127.0.0.1:*"
        start = f"{settings} exec {entry}/steps.sh opensearch"
        (entry / "bin" / "opensearch").write_text(f'#!/bin/bash\n{start} "$@"\n')
        for path in (entry, entry / "bin", entry / "bin" / "opensearch", entry / "steps.sh"):
            path.chmod(0o755)
        started = Node(heap="768m", home=entry)
        try:
            yield started.start().wait()
        finally:
            started.stop()
    finally:
        shutil.rmtree(entry, ignore_errors=True)
        shutil.rmtree(home.parent, ignore_errors=True)


@pytest.fixture(scope="module")
def collection(small, tmp_path_factory) -> Path:
    """The small collection in the layout of the demo."""
    return write_demo_collection(small, tmp_path_factory.mktemp("demo") / "collection")


@pytest.mark.slow
def test_the_steps_build_and_serve_a_demo(opensearch, collection, small, token, run, tmp_path):
    env: dict[str, Any] = {
        "OPENSEARCH_URL": opensearch.url,
        "WORKSPACE": tmp_path / "workspace",
        "COLLECTION": collection,
        "EPOCHS": 2,
        "TOKEN_FILE": token,
        "SERVICE_HOST": "127.0.0.1",
        "SERVICE_PORT": free_port(),
    }
    alone = environment_with(tmp_path, "service")["PYTHONPATH"]  # as in the service image
    env["SERVICE_URL"] = f"http://127.0.0.1:{env['SERVICE_PORT']}"
    health = f"{opensearch.url}/_cluster/health?wait_for_status=yellow&timeout=4s"
    assert steps("healthy", health).returncode == 0
    # the service does not run yet
    assert steps("healthy", f"{env['SERVICE_URL']}/readyz", check=False).returncode != 0
    assert steps("healthy", f"{opensearch.url}/none-such", check=False).returncode != 0

    steps("demo", **env)
    assert steps("demo", **env).stdout == "the workspace is there\n"
    with (tmp_path / "serve.log").open("w") as log:
        serving = subprocess.Popen(
            [STEPS, "serve"],
            env={**os.environ, **environment(env), "PYTHONPATH": alone},
            stdout=log,
            stderr=log,
        )
    try:
        ready = f"{env['SERVICE_URL']}/readyz"
        wait_until(lambda: serving.poll() is not None or steps("healthy", ready, check=False).returncode == 0)
        shown = steps("hook", **env, PYTHONPATH=alone).stdout
        assert "the order is the same" in shown
        assert steps("hook", **env).stdout.startswith("nothing to change\n")
        for query in read_queries(small.queries)[:5]:
            args = ("--stack", "bm25,text,meta", "--depth", 100, "-w", env["WORKSPACE"], "--json")
            text = query.search_text("en")  # a plain search keeps stop words
            hits = run("query", text, *args).json["hits"]
            assert plain_search(opensearch, text) == [hit["id"] for hit in hits]
    finally:
        serving.terminate()
        assert serving.wait(300) == 0, (tmp_path / "serve.log").read_text()[-3000:]
    stats = opensearch.request("GET", "/_plugins/_rerank_stack/stats")
    assert (stats["failed"], stats["reranked"] > 5) == ({}, True)


def plain_search(node: Node, text: str) -> list[str]:
    answer = node.request("POST", "/articles/_search", {"query": {"match": {"content": text}}})
    return [hit["_id"] for hit in answer["hits"]["hits"]]
