"""The sources of packages: the name of the distribution, and the packages in the images."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rerank.common.errors import NotInstalledError

tomllib = pytest.importorskip("tomllib")
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
TEXTS = ("rerank", "cli", "docs", "docker", "benchmarks", "tools", "README.md", "pyproject.toml")


def locked_packages(name):
    """Return package -> words of its line in a requirements file: version and hashes."""
    text = (ROOT / "docker" / "requirements" / name).read_text("utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line.strip()]
    return {line[0].partition("==")[0]: line for line in lines}


def test_install_commands_use_the_name_of_the_distribution():
    """Another project owns the name `rerank` on the public index."""
    assert PROJECT["name"] == "rerank-stack"
    assert PROJECT["scripts"] == {"rerank": "rerank.cli:main"}
    assert "pip install '.[train]'" in str(NotInstalledError("torch"))
    for place in TEXTS:
        path = ROOT / place
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.suffix in (".py", ".md")]
        for file in files:
            for line in file.read_text("utf-8").splitlines():
                assert not re.search(r"(?<![\w-])rerank\[[a-z]", line), f"{file}: {line}"


@pytest.mark.parametrize(("name", "extra"), [("service.txt", "service"), ("train.txt", "train")])
def test_every_package_of_an_image_has_a_version_and_hashes(name, extra):
    found = locked_packages(name)
    for package, line in found.items():
        assert "==" in line[0], package
        hashes = [part for part in line if part.startswith("--hash=")]
        assert hashes, package
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), package
    for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]):
        expected = Requirement(text)
        if expected.marker is not None and not expected.marker.evaluate({"python_version": "3.11"}):
            continue
        line = found[expected.name.replace("_", "-").lower()]
        assert expected.specifier.contains(line[0].partition("==")[2]), text


def test_images_use_only_one_package_index():
    for path in (ROOT / "docker").rglob("*"):
        if path.is_file() and path.parent.name != "secrets":
            text = path.read_text("utf-8")
            assert not re.search("extra.index|find-links|trusted-host|--index-url", text, re.I), path
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text("utf-8")
    for install in re.findall(r"pip (?:install|wheel) [^&\n]*", dockerfile):
        assert "--require-hashes" in install or "--no-index" in install, install
    images = set(re.findall(r"^FROM (?:--\S+ )?(\S+)", dockerfile, re.M))
    stages = set(re.findall(r" AS (\S+)", dockerfile))
    named = {f"${{{name}}}" for name in re.findall(r"^ARG ([A-Z]+)=\S+:\S+", dockerfile, re.M)}
    assert images - stages == named  # docker/pin.sh writes the digests of these
