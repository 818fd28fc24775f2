"""Invalid full texts through the command: counted, or one line that names the file."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile

from rerank import Workspace
from tests.unit.formats.test_jats import BOMB, FIVE, article, cite, reference

GOOD = article(f"<p>It is known {cite(1)}, {cite(2)}.</p>", doi="10.1000/good")


def tar(*files, mode="w:xz"):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def zip_archive(*files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return data.getvalue()


def damage(data):
    """Return the data with changed bytes in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes(255 - byte for byte in data[middle : middle + 8]) + data[middle + 8 :]


NOISE = b"".join(b"<!-- %d -->" % (n * n % 99_991) for n in range(20_000))  # does not compress well
TWO = (("a.xml", GOOD), ("b.xml", article("<p>Text.</p>", doi="10.1000/b") + NOISE))

BROKEN = {
    "cut.xml": (article("<p>Text.</p>")[:-40], "cut.xml:1: invalid XML"),
    "empty.xml": (b"", "empty.xml"),
    "html.xml": (b"<html><body/></html>", "html.xml: not a JATS article"),
    "bare.xml": (b"<article><body/></article>", "article/front/article-meta is missing"),
    "two.xml": (b"<set>%b%b</set>" % (article(), article()), "2 articles in one file"),
    "latin.xml": (article("<p>caf\xe9</p>").decode().encode("latin-1"), "latin.xml:1: invalid XML"),
    "encoding.xml": (article(prolog="<?xml version='1.0' encoding='klingon'?>"), "invalid XML"),
    "deep.xml": (article("<sec>" * 3000 + "</sec>" * 3000), "deep.xml:1: invalid XML"),
    "cut.xml.gz": (gzip.compress(article("<p>Text.</p>"))[:-9], "cut.xml.gz: truncated or corrupt"),
    "inner.tar.gz": (
        tar(("in.zip", zip_archive(TWO[0])), mode="w:gz"),
        "in.zip: an archive inside an archive",
    ),
    "inner.zip": (zip_archive(("in.tar.xz", tar(TWO[0]))), "in.tar.xz: an archive inside an archive"),
    "cut.tar.xz": (tar(*TWO)[:-900], "cut.tar.xz: the archive is truncated or corrupt"),
    "cut.tar.gz": (tar(*TWO, mode="w:gz")[:-900], "cut.tar.gz: the archive is truncated or corrupt"),
    "cut.tar": (tar(*TWO, mode="w")[: 1024 * 3], "cut.tar: the archive is truncated or corrupt"),
    "cut.zip": (zip_archive(*TWO)[:-900], "cut.zip: the archive is truncated or corrupt"),
    "damaged.zip": (damage(zip_archive(*TWO)), "b.xml: cannot be read from the archive"),
    "damaged.tar.xz": (damage(tar(*TWO)), "damaged.tar.xz: the archive is truncated or corrupt"),
    "none.tar.gz": (b"no archive", "none.tar.gz: the archive is truncated or corrupt"),
}


def test_broken_article_files_are_named_and_can_be_skipped(run, tmp_path):
    (tmp_path / "good.xml").write_bytes(article("<p>Good.</p>", doi="10.1000/other"))
    for name, (data, _) in BROKEN.items():
        (tmp_path / name).write_bytes(data)
    files = [tmp_path / name for name in (*BROKEN, "good.xml")]
    run("ingest", "--format", "jats", *files, "-w", tmp_path / "ws").fails(1, BROKEN["cut.xml"][1])
    assert not (tmp_path / "ws").exists()
    done = run("ingest", "--format", "jats", "--skip-invalid", "--json", *files, "-w", tmp_path / "ws").json
    lines = [line for line in done["invalid"] if "occurs twice" not in line]
    for (name, (_, said)), line in zip(BROKEN.items(), lines, strict=True):
        assert f"{tmp_path}/{name}" in line
        assert said in line
        assert "\n" not in line
    assert {"10.1000/good", "10.1000/other"} <= set(Workspace.open(tmp_path / "ws").engine.ids())


def test_a_file_of_100_megabytes_is_refused(run, tmp_path):
    with open(tmp_path / "large.xml", "wb") as file:
        file.write(b"<article>")
        file.truncate(100_000_000)
    run("ingest", "--format", "jats", tmp_path / "large.xml", "-w", tmp_path / "ws").fails(
        1, "large.xml: more than 50 MB"
    )  # fmt: skip


def test_files_without_articles_are_refused(run, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("none")
    (tmp_path / "figures.zip").write_bytes(
        zip_archive(("figure.png", b"png"), ("._a.xml", b"of another system"))
    )
    command = ("ingest", "--format", "jats", "--skip-invalid", "-w", tmp_path / "ws")
    for name in ("empty", "notes.txt", "figures.zip"):
        run(*command, tmp_path / name).fails(1, f"{name}: no articles")
    run(*command, tmp_path / "nothing.zip").fails(1, "nothing.zip: no such file; check the path")
    run(*command, "-").fails(2, "standard input")
    (tmp_path / "c.jsonl").write_text('{"_id": "1"}')
    run("ingest", "--body", tmp_path / "c.jsonl").fails(2, "--body is for --format jats")


def test_incomplete_articles_are_read(run, tmp_path):
    (tmp_path / "in").mkdir()
    for name, data in {
        "a": article(None, doi="10.1000/a"),
        "b": article("<p>Text.</p>", [], doi="10.1000/b"),
        "c": article(f"<p>{cite(1)} {cite(2)} {cite(9)}.</p>", [reference(1), FIVE[1]], doi="10.1000/c"),
        "d": article("<p>Before &a; after.</p>", prolog=BOMB, doi="10.1000/d"),
    }.items():
        (tmp_path / "in" / f"{name}.nxml").write_bytes(data)
    done = run("ingest", "--format", "jats", "--body", tmp_path / "in", "-w", tmp_path / "ws")
    assert (done.code, done.err) == (0, "")
    actual = {document.id: document for document in Workspace.open(tmp_path / "ws").engine.documents()}
    assert actual["10.1000/d"].text == "Before aaaaaaaaaa after."
    assert [row["ref"] for row in actual["10.1000/c"].extra["citations"]] == ["10.1000/2"]


def test_one_article_in_two_files_is_refused_or_skipped(run, tmp_path):
    (tmp_path / "v1.xml").write_bytes(GOOD)
    (tmp_path / "v2.xml").write_bytes(article(doi="10.1000/good"))
    command = ("ingest", "--format", "jats", tmp_path / "v1.xml", tmp_path / "v2.xml", "-w", tmp_path / "ws")
    run(*command).fails(1, "v2.xml: article 10.1000/good occurs twice")
    done = run(*command, "--skip-invalid", "--json").json
    assert (done["added"], len(done["invalid"])) == (1, 1)
