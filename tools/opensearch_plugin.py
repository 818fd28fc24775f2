"""The search-pipeline plugin: built from its sources, and its token in a node's keystore."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.opensearch_node import (
    QUICK,
    VERSION,
    CannotRunError,
    Node,
    cache,
    cache_lock,
    java_home,
    local_repository,
)

SETTINGS = {
    "discovery.type": "single-node",
    "plugins.rerank_stack.allowed_urls": "http://127.0.0.1:*,http://host.invalid:1",
}
"""Settings of a separate node that calls services on this machine."""

PLUGIN = Path(__file__).resolve().parents[1] / "opensearch_plugin"


@cache_lock()
def build(version: str = VERSION, *options: str) -> Path:
    """Return the plugin's zip for a server version. It is built once per state of the sources.

    options: of Maven, such as ``-Pmanaged``.
    """
    if shutil.which("mvn") is None:
        raise CannotRunError("Maven (mvn) builds the plugin; install it")
    java = java_home(version)
    digest = hashlib.sha256(f"{version} {java} {options}".encode())
    for path in sorted(path for path in PLUGIN.rglob("*") if path.is_file() and "target" not in path.parts):
        digest.update(f"\0{path.relative_to(PLUGIN)}\0".encode() + path.read_bytes())
    kept = cache() / "plugins" / digest.hexdigest()[:16]
    if not kept.exists():
        _build(kept, version, java, options)
    (archive,) = kept.glob("*.zip")
    return archive


def _build(kept: Path, version: str, java: Path, options: Sequence[str]) -> None:
    local = f"-Dmaven.repo.local={local_repository()}"
    command = ["mvn", "-q", "-B", local, f"-Dopensearch.version={version}"]
    with tempfile.TemporaryDirectory() as target:
        environment = {**os.environ, "JAVA_HOME": str(java)}
        done = subprocess.run(
            [*command, f"-Dtarget={target}", *options, "package"],
            cwd=PLUGIN, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            text = done.stdout + done.stderr
            if "Could not transfer" in text or "Could not resolve" in text:
                raise CannotRunError(f"Maven cannot download dependencies of the plugin: {text[-500:]}")
            raise AssertionError(text)
        (archive,) = Path(target).glob("*.zip")
        fresh = kept.with_suffix(".new")
        fresh.mkdir(parents=True, exist_ok=True)
        shutil.copy(archive, fresh)
        fresh.rename(kept)


def put_pipeline(node: Node, name: str, **config: object) -> None:
    """Write a search pipeline with the processor in both phases and these settings."""
    pipeline = {
        "request_processors": [{"rerank_stack": config}],
        "response_processors": [{"rerank_stack": {}}],
    }
    node.request("PUT", f"/_search/pipeline/{name}", pipeline)


def tool_environment(node: Node) -> dict[str, str]:
    """Return the environment of the distribution's tools."""
    return {
        "PATH": os.environ["PATH"],
        "OPENSEARCH_JAVA_HOME": str(node._java),
        "OPENSEARCH_PATH_CONF": str(node.folder / "config"),
        "JDK_JAVA_OPTIONS": " ".join(QUICK[:2]),
    }


def set_token(node: Node, token: str, name: str = "plugins.rerank_stack.token") -> None:
    """Write the token into the node's keystore with the distribution's tool."""
    add = (node.home / "bin" / "opensearch-keystore", "add", "--stdin", "--force", name)
    subprocess.run(
        add, env=tool_environment(node), input=f"{token}\n", capture_output=True, text=True, check=True
    )
    if os.getuid() == 0:  # the node does not run as root
        owner = (node.folder / "config" / "opensearch.yml").stat()
        os.chown(node.folder / "config" / "opensearch.keystore", owner.st_uid, owner.st_gid)
