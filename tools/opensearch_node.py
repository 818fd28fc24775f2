"""Real OpenSearch nodes for tests and benchmarks, or by hand: ``python -m tools.opensearch_node``.

Maven downloads the distribution by its coordinates. It is unpacked once into a cache folder
(``RERANK_TEST_CACHE``, or a folder in the system's persistent temporary folder). Each node has separate
folders for configuration, data and logs. OpenSearch refuses to run as root, so root starts it as another
user.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

VERSION = "3.6.0"
COORDINATES = "org.opensearch.distribution.integ-test-zip:opensearch:{version}:zip"
PLUGIN = f"org.opensearch.plugin:{{name}}:{VERSION}.0:zip"
ML_COMMONS = ("opensearch-job-scheduler", "opensearch-knn", "opensearch-ml-plugin", "neural-search")
TRUSTED_ENDPOINTS = "plugins.ml_commons.trusted_connector_endpoints_regex"
PRIVATE_ADDRESSES = "plugins.ml_commons.connector.private_ip_enabled"
LOCAL_ENDPOINTS = [r"^http://127\.0\.0\.1:\d+/.*$"]
"""Settings of ML Commons, and the endpoints on this machine."""
JAVA = {"2": range(11, 24), "3": range(21, 1000)}  # Java versions for OpenSearch 2.x and 3.x
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-AlwaysPreTouch")
"""Java options for short-lived nodes: a start takes 15 seconds of CPU instead of 26."""
_PATIENCE = 400.0  # seconds to wait for an answer; two idle cores need 10 to 15


class CannotRunError(Exception):
    """No node can be started on this machine. The message names the software to install."""


def java_home(version: str = VERSION) -> Path:
    """Find a Java for OpenSearch in OPENSEARCH_JAVA_HOME, JAVA_HOME, the path, and usual folders."""
    usable = JAVA[version.partition(".")[0]]
    found = [os.environ.get(name) for name in ("OPENSEARCH_JAVA_HOME", "JAVA_HOME")]
    candidates = [Path(home) for home in found if home]
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path).resolve().parents[1])
    for folder in ("/usr/lib/jvm", "/opt", "/Library/Java/JavaVirtualMachines"):
        candidates += sorted(Path(folder).glob("*/Contents/Home")) + sorted(Path(folder).glob("*"))
    for home in candidates:
        if (home / "bin" / "java").exists() and _java_version(home) in usable:
            return home
    raise CannotRunError(
        f"OpenSearch {version} needs Java {usable[0]} or later{'' if usable[-1] > 99 else ', below 24'};"
        " install one, or name it in OPENSEARCH_JAVA_HOME"
    )


def _java_version(home: Path) -> int:
    done = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else 0


def cache() -> Path:
    """Return the folder of unpacked distributions. Other users can also read it."""
    named = os.environ.get("RERANK_TEST_CACHE")
    return Path(named) if named else Path("/var/tmp") / f"rerank-tests-{os.getuid()}"


_held = 0  # number of locks held by this process, which uses one thread here


@contextlib.contextmanager
def cache_lock() -> Iterator[None]:
    """Lock the cache folder and the local Maven repository for this test process."""
    global _held
    cache().mkdir(mode=0o755, parents=True, exist_ok=True)
    with open(cache() / "lock", "ab") as lock:
        if not _held:
            fcntl.flock(lock, fcntl.LOCK_EX)
        _held += 1
        try:
            yield
        finally:
            _held -= 1


def local_repository() -> str:
    """Return the folder of Maven's local repository."""
    return os.environ.get("MAVEN_REPO_LOCAL", str(Path.home() / ".m2" / "repository"))


@cache_lock()
def maven(coordinates: str) -> Path:
    """Download an artifact into the local Maven repository, and return its path."""
    if shutil.which("mvn") is None:
        raise CannotRunError("Maven (mvn) brings OpenSearch; install it")
    group, name, version, kind = coordinates.split(":")
    local = local_repository()
    path = Path(local, *group.split("."), name, version, f"{name}-{version}.{kind}")
    if not path.exists():
        command = ["mvn", "-q", "-B", f"-Dmaven.repo.local={local}", "dependency:get", "-Dtransitive=false"]
        done = subprocess.run(
            [*command, f"-Dartifact={coordinates}"], capture_output=True, text=True, check=False
        )
        if done.returncode or not path.exists():
            raise CannotRunError(f"Maven cannot bring {coordinates}: {(done.stdout + done.stderr)[-500:]}")
    return path


@cache_lock()
def distribution(version: str = VERSION) -> Path:
    """Return the folder of the unpacked distribution. Unpack it if it does not exist."""
    home = cache() / f"opensearch-{version}"
    if home.exists():
        return home
    archive = maven(COORDINATES.format(version=version))
    fresh = Path(tempfile.mkdtemp(dir=cache()))
    try:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(fresh)
        (unpacked,) = fresh.iterdir()
        if not (unpacked / "modules" / "analysis-common").exists():
            _add_modules(unpacked / "modules", version)
        for path in [unpacked, *unpacked.rglob("*")]:
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
        unpacked.rename(home)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return home


def _add_modules(folder: Path, version: str) -> None:
    """Add analyzers and scripts, which archives up to 3.3 lack: jars from Maven, other files as in VERSION"""
    for module in ("lang-painless", "analysis-common"):
        shutil.copytree(distribution() / "modules" / module, folder / module)
        for jar in (folder / module).glob(f"*-{VERSION}.jar"):
            jar.unlink()
            shutil.copy(
                maven(f"org.opensearch.plugin:{jar.name[: -len(VERSION) - 5]}:{version}:jar"), folder / module
            )
        descriptor = folder / module / "plugin-descriptor.properties"
        about = descriptor.read_text("utf-8").replace(f"version={VERSION}", f"version={version}")
        if version.startswith("2."):
            about = about.replace("java.version=21", "java.version=11").replace("ModulePlugin", "Plugin")
        descriptor.write_text(about, "utf-8")


def with_plugins(home: Path, plugins: Sequence[Path]) -> Path:
    """Copy a distribution, with hard links if possible, and unpack the plugins' zips into the copy."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    copy = Path(tempfile.mkdtemp(prefix="with-plugins-", dir=cache())) / "home"
    shutil.copytree(home, copy, copy_function=link)
    for plugin in plugins:
        with zipfile.ZipFile(plugin) as packed:
            packed.extractall(copy / "plugins" / plugin.stem)
    for path in [copy.parent, *(copy / "plugins").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


@cache_lock()
def with_ml_commons() -> Path:
    """Return the folder of the distribution with ML Commons and neural-search. It is also unpacked once."""
    home = cache() / f"opensearch-{VERSION}-ml"
    if not home.exists():
        made = with_plugins(distribution(), [maven(PLUGIN.format(name=name)) for name in ML_COMMONS])
        try:
            made.rename(home)
        finally:
            shutil.rmtree(made.parent, ignore_errors=True)
    return home


def free_port() -> int:
    """Return an unused port of the loopback interface.

    It is below the range from which systems assign ports, so no other process gets it before it is used.
    """
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


class Node:
    """An OpenSearch process. ``url`` is its address; ``stop`` ends it and removes its folders."""

    def __init__(
        self,
        name: str = "node-0",
        settings: Mapping[str, str] | None = None,
        *,
        version: str = VERSION,
        heap: str = "1g",
        home: Path | None = None,
        plugins: Sequence[Path] = (),
        java: Sequence[str] = QUICK,
    ) -> None:
        """``java``: options for a short-lived node; without them the node runs like the distribution.

        A short-lived node without plugins has no Java agent. The agent checks the rights of plugins
        and reads all classes, which takes a fifth of the start.
        """
        self.name = name
        self.home = home or distribution(version)
        self._own_home = with_plugins(self.home, plugins) if plugins else None
        self.home = self._own_home or self.home
        self.port, self.transport = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = Path(tempfile.mkdtemp(prefix="rerank-node-", dir="/tmp"))
        self._settings = dict(settings or {"discovery.type": "single-node"})
        self._heap = heap
        self._java = java_home(version)
        self._quick = bool(java)
        self.process: subprocess.Popen[bytes] | None = None
        shutil.copytree(self.home / "config", self.folder / "config")
        # otherwise its logs would go into the shared distribution
        options = self.folder / "config" / "jvm.options"
        unwanted, more = "logs/", list(java)
        if java:
            unwanted += "|G1|InitiatingHeap"
            if home is None and not plugins:
                unwanted += "|javaagent"
                agent = (self.home / "agent").glob("*-bootstrap-*.jar")
                more += [f"-Xbootclasspath/a:{jar}" for jar in agent]
        kept = [line for line in options.read_text("utf-8").splitlines() if not re.search(unwanted, line)]
        options.write_text("\n".join([*kept, *more]) + "\n", "utf-8")
        for part in ("data", "logs", "tmp"):
            (self.folder / part).mkdir()

    def start(self) -> Node:
        """Start the process; :meth:`wait` waits until it answers."""
        options = {
            "node.name": self.name,
            "http.port": str(self.port),
            "transport.port": str(self.transport),
            "network.host": "127.0.0.1",
            "path.data": str(self.folder / "data"),
            "path.logs": str(self.folder / "logs"),
            # Tests also run on nearly full disks. A separate test covers the flood stage.
            "cluster.routing.allocation.disk.threshold_enabled": "false",
            **self._settings,
        }
        environment = {
            "PATH": os.environ["PATH"],
            "OPENSEARCH_JAVA_HOME": str(self._java),
            "OPENSEARCH_JAVA_OPTS": f"-Xms{self._heap} -Xmx{self._heap}",
            "OPENSEARCH_PATH_CONF": str(self.folder / "config"),
            "OPENSEARCH_TMPDIR": str(self.folder / "tmp"),
        }
        command = [str(self.home / "bin" / "opensearch")]
        if self._quick and (self.home / "lib").exists():
            command = self._java_command(environment)
        elif self._quick:  # the script starts Java several times before the node
            environment["JDK_JAVA_OPTIONS"] = " ".join(QUICK[:2])
        who: dict[str, Any] = {}
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            for path in [self.folder, *self.folder.rglob("*")]:
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [*command, *(f"-E{k}={v}" for k, v in options.items())],
                env=environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # the tests handle ctrl-C in the terminal
                **who,
            )
        return self

    def _java_command(self, environment: Mapping[str, str]) -> list[str]:
        """Return the final command of ``bin/opensearch``, without the seven Java processes that it
        starts first.

        A tool of OpenSearch computes the Java options once per settings. The cache folder keeps them.
        """
        java, lib = str(self._java / "bin" / "java"), str(self.home / "lib" / "*")
        settings = (self.folder / "config" / "jvm.options").read_text("utf-8")
        # these identify the OpenSearch version
        jars = sorted(path.name for path in (self.home / "lib").iterdir())
        known = hashlib.sha256("\0".join([java, self._heap, settings, *jars]).encode()).hexdigest()
        kept, elsewhere = cache() / "java" / known[:16], str(self.folder)
        if not kept.exists():
            made = subprocess.run(
                [java, *QUICK[:2], "-cp", lib, "org.opensearch.tools.launchers.JvmOptionsParser",
                 environment["OPENSEARCH_PATH_CONF"]],
                env=dict(environment), cwd=self.home, capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            kept.parent.mkdir(exist_ok=True)
            fresh = kept.with_suffix(f".{os.getpid()}")
            fresh.write_text(made.replace(elsewhere, "FOLDER"), "utf-8")
            fresh.rename(kept)
        made = kept.read_text("utf-8").replace("FOLDER", elsewhere)
        paths = {"home": self.home, "conf": environment["OPENSEARCH_PATH_CONF"]}
        about = [f"-Dopensearch.path.{name}={path}" for name, path in paths.items()]
        about += ["-Dopensearch.distribution.type=zip", "-Dopensearch.bundled_jdk=false"]
        return [java, *made.split(), *about, "-cp", lib, "org.opensearch.bootstrap.OpenSearch"]

    def wait(self, nodes: int = 1) -> Node:
        """Wait until the node answers and sees this number of nodes."""
        give_up = time.monotonic() + _PATIENCE
        while time.monotonic() < give_up:
            if self.process is None or self.process.poll() is not None:
                break
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError):
                health = self.request("GET", "/_cluster/health?local=true")
                if health["status"] in ("green", "yellow") and health["number_of_nodes"] >= nodes:
                    return self
            time.sleep(0.2)
        output = (self.folder / "output").read_text("utf-8", errors="replace")[-3000:]
        self.stop()
        raise RuntimeError(f"{self.name} did not start:\n{output}")

    def request(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """Send a JSON request, without the client under test. HTTP errors raise ValueError."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=180)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status >= 400:
                raise ValueError(f"{method} {path}: {answer.status} {text[:2000]}")
            return json.loads(text) if text.lstrip()[:1] in ("{", "[") else text
        finally:
            connection.close()

    @contextlib.contextmanager
    def changed(self, settings: dict[str, object], index: str = "") -> Iterator[None]:
        """Change settings of an index, or of the cluster, in the block."""

        def put(values: dict[str, object]) -> None:
            path = f"/{index}/_settings" if index else "/_cluster/settings"
            self.request("PUT", path, values if index else {"persistent": values})

        put(settings)
        try:
            yield
        finally:
            put(dict.fromkeys(settings))

    def kill(self) -> None:
        """End the process at once, like a power failure."""
        self._signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def pause(self) -> None:
        """Stop the process, and wait until it is stopped. It keeps its connections, but does not answer."""
        self._signal(signal.SIGSTOP)
        if self.process is not None and self.process.poll() is None:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continue a stopped process."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def stop(self) -> None:
        """End the process and remove its folders."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._own_home:
            shutil.rmtree(self._own_home.parent, ignore_errors=True)


class Cluster:
    """Several nodes that form a cluster on this machine."""

    def __init__(
        self,
        count: int = 3,
        heap: str = "512m",
        java: Sequence[str] = QUICK,
        plugins: Sequence[Path] = (),
        home: Path | None = None,
        **settings: str,
    ) -> None:
        names = [f"node-{i}" for i in range(count)]
        settings |= {"cluster.name": f"rerank-tests-{os.getpid()}"}
        self.nodes = [
            Node(name, settings, heap=heap, java=java, plugins=plugins, home=home) for name in names
        ]
        for node in self.nodes:
            node._settings["discovery.seed_hosts"] = ",".join(f"127.0.0.1:{n.transport}" for n in self.nodes)
            node._settings["cluster.initial_cluster_manager_nodes"] = ",".join(names)

    def start(self) -> Cluster:
        """Start all nodes and wait until each sees the others."""
        try:
            for node in self.nodes:
                node.start()
            for node in self.nodes:
                node.wait(len(self.nodes))
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def urls(self) -> list[str]:
        """The addresses of the nodes."""
        return [node.url for node in self.nodes]

    def stop(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.stop()


@contextlib.contextmanager
def running(settings: Mapping[str, str] | None = None, **options: Any) -> Iterator[Node]:
    """Run a node during the block."""
    node = Node(settings=settings, **options)
    try:
        yield node.start().wait()
    finally:
        node.stop()


def main() -> None:
    """Start nodes, print their addresses, and stop them at ctrl-C."""
    parser = argparse.ArgumentParser(description="Start OpenSearch on this machine until ctrl-C.")
    parser.add_argument("--nodes", type=int, default=1, help="number of nodes of the cluster")
    parser.add_argument("--ml", action="store_true", help="with k-NN, ML Commons and neural-search")
    arguments = parser.parse_args()
    cluster = Cluster(arguments.nodes, home=with_ml_commons() if arguments.ml else None)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            print("\n".join(cluster.start().urls), flush=True)
            signal.pause()
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
