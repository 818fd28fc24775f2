"""The search-pipeline plugin: built from its sources, and its token in a node's keystore."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.node import VERSION, CannotRunError, Node, java_home

PLUGIN = Path(__file__).resolve().parents[1] / "opensearch_plugin"


def build(target: Path, version: str = VERSION) -> Path:
    """Build the plugin for a server, and return its zip."""
    if shutil.which("mvn") is None:
        raise CannotRunError("Maven (mvn) builds the plugin; install it")
    local = os.environ.get("MAVEN_REPO_LOCAL", str(Path.home() / ".m2" / "repository"))
    command = ["mvn", "-q", "-B", f"-Dmaven.repo.local={local}", f"-Dopensearch.version={version}"]
    done = subprocess.run(
        [*command, f"-Dtarget={target}", "package"],
        cwd=PLUGIN,
        env={**os.environ, "JAVA_HOME": str(java_home(version))},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        text = done.stdout + done.stderr
        if "Could not transfer" in text or "Could not resolve" in text:
            raise CannotRunError(f"Maven cannot bring what the plugin needs: {text[-500:]}")
        raise AssertionError(text)
    (archive,) = target.glob("*.zip")
    return archive


def set_token(node: Node, token: str) -> None:
    """Write the token into the node's keystore, with the distribution's own tool."""
    environment = {
        "PATH": os.environ["PATH"],
        "OPENSEARCH_JAVA_HOME": str(node._java),
        "OPENSEARCH_PATH_CONF": str(node.folder / "config"),
    }
    tool = str(node.home / "bin" / "opensearch-keystore")
    if not (node.folder / "config" / "opensearch.keystore").exists():
        subprocess.run([tool, "create"], env=environment, check=True, capture_output=True)
    add = [tool, "add", "--stdin", "--force", "rerank.token"]
    subprocess.run(add, env=environment, input=f"{token}\n".encode(), check=True, capture_output=True)
    if os.getuid() == 0:  # the node does not run as root
        owner = (node.folder / "config" / "opensearch.yml").stat()
        os.chown(node.folder / "config" / "opensearch.keystore", owner.st_uid, owner.st_gid)
