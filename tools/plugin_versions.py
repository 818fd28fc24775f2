"""Build the plugin for releases of OpenSearch, and test each zip on a node of this release.

python tools/plugin_versions.py --out zips              # all releases from 3.0 that Maven has
python tools/plugin_versions.py 3.0.0 3.6.0 --out zips  # these releases

The distribution of a release is downloaded, and deleted again unless it existed. A release without a
distribution is built and unit-tested, but not run. Needs Java 21 or later and Maven. Exit code 1: a release
failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.opensearch_node import COORDINATES, CannotRunError, cache, distribution, local_repository  # noqa: E402
from tools.opensearch_plugin import build  # noqa: E402

SERVER = "org.opensearch:opensearch"
"""Artifact of the server, whose releases are listed."""

OLDEST = (3, 0)


def releases() -> list[str]:
    """Return the releases of OpenSearch from OLDEST that Maven has, ascending."""
    command = ["mvn", "-q", "-B", "-U", f"-Dmaven.repo.local={local_repository()}", "dependency:get"]
    subprocess.run([*command, "-Dtransitive=false", f"-Dartifact={SERVER}:RELEASE:pom"], check=True)
    folder = Path(local_repository(), *SERVER.replace(".", "/").replace(":", "/").split("/"))
    versions: set[str] = set()
    for path in folder.glob("maven-metadata-*.xml"):
        texts = (element.text or "" for element in ElementTree.parse(path).iter("version"))
        versions.update(text for text in texts if re.fullmatch(r"\d+\.\d+\.\d+", text))
    return sorted((version for version in versions if numbers(version)[:2] >= OLDEST), key=numbers)


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a release.

    >>> numbers("3.10.0") > numbers("3.9.1")
    True
    """
    return tuple(map(int, version.split(".")))


@contextmanager
def downloaded(version: str, *, keep: bool) -> Iterator[None]:
    """Download and unpack a distribution for the block. keep: do not delete it afterwards."""
    existed = (cache() / f"opensearch-{version}").exists()
    group, name, _, kind = COORDINATES.format(version=version).split(":")
    folder = Path(local_repository(), *group.split("."), name, version)
    was_downloaded = (folder / f"{name}-{version}.{kind}").exists()
    try:
        distribution(version)
        yield
    finally:
        if not keep and not existed:
            shutil.rmtree(cache() / f"opensearch-{version}", ignore_errors=True)
        if not keep and not was_downloaded:
            shutil.rmtree(folder, ignore_errors=True)


def check(version: str) -> None:
    """Raise AssertionError if the tests of a release fail."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-q",
        "-rs",
        "tests/integration/test_hook_release.py",
    ]
    environment = {**os.environ, "RERANK_TEST_RELEASE": version}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or "skipped" in done.stdout:
        raise AssertionError(done.stdout + done.stderr)


def build_and_test(version: str, out: Path, *, keep: bool) -> tuple[str, bool]:
    """Return the result of one release in words, and whether it failed."""
    try:
        shutil.copy(build(version), out)
    except (AssertionError, CannotRunError) as error:
        return f"not built: {str(error)[-2000:]}", True
    try:
        with downloaded(version, keep=keep):
            check(version)
    except CannotRunError:
        return "built and unit-tested; Maven has no distribution to run", False
    except AssertionError as error:
        return f"failed on a node: {str(error)[-2000:]}", True
    return "built, unit-tested and run", False


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per release. Return the exit code."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("versions", nargs="*", help="Releases. Default: all from 3.0 that Maven has.")
    parser.add_argument("--out", type=Path, required=True, help="Folder for the zips.")
    parser.add_argument("--keep", action="store_true", help="Keep downloaded distributions.")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    failures = 0
    for version in options.versions or releases():
        begin = time.monotonic()
        result, is_failure = build_and_test(version, options.out, keep=options.keep)
        failures += is_failure
        print(f"{version}\t{result}\t{time.monotonic() - begin:.0f} s", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
