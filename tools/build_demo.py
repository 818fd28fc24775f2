#!/usr/bin/env python3
"""Build the demo collection that ships in rerank/workflows/demo/collection from eLife articles in JATS XML.

    python tools/build_demo.py path/to/elife-jats.tar.xz [--out FOLDER]

The same archive gives the same files, byte for byte (with one version of zlib).

Documents: title and research abstract. Queries: the first two sentences of an article's plain-language
digest. Documents do not contain digests, because each query would then match its article literally. For the
same reason the impact statement is not read: it repeats words of the abstract.

Short queries have the same ids and judgments: the first heading of three to eight words in the results of the
article. Documents do not contain the full text.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerank.common.errors import InputError
from rerank.formats import jats
from rerank.formats.archives import read_files

DEFAULT_OUT = Path(__file__).resolve().parent.parent / "rerank" / "workflows" / "demo" / "collection"

DIGESTS = ("executive-summary", "plain-language-summary")
SHORT = (3, 8)  # words of a short query
SPLITS = (("train", 6), ("dev", 2), ("test", 2))  # shares of ten

# Also matches the DOI of a part of an article, 10.7554/eLife.00003.002.
_DOI = re.compile(r"10\.7554/elife\.(\d{5})", re.IGNORECASE)
_HREF = "{http://www.w3.org/1999/xlink}href"
_LICENSE = re.compile(
    r"https?://creativecommons\.org/(?:licenses/(by)/(\d\.\d)|publicdomain/(zero)/(\d\.\d))/?$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Article:
    """The parts of a JATS file that the collection uses."""

    id: str
    doi: str
    title: str
    abstract: str
    digest: tuple[str, ...]  # its paragraphs
    heading: str  # the first short one of its results
    subjects: tuple[str, ...]
    keywords: tuple[str, ...]
    organisms: tuple[str, ...]
    cites: frozenset[str]
    related: frozenset[str]
    authors: tuple[str, ...]
    year: int
    copyright: str
    license: str | None  # "CC BY 4.0", "CC0 1.0", or None for another license


# JATS


def tidy(text: str) -> str:
    """Return the text in NFC, with each run of whitespace (also no-break spaces) as one space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def article_id(doi: str) -> str | None:
    """Return a short id: ``10.7554/eLife.00003`` gives ``e00003``. None for a DOI of another journal.

    With the letter, spreadsheets and data frames do not read it as a number and drop the zeros.
    """
    found = _DOI.match(doi.strip())
    return f"e{found[1]}" if found else None


def license_name(url: str) -> str | None:
    """Return ``CC BY 4.0`` or ``CC0 1.0`` for a Creative Commons address, or None for other licenses."""
    found = _LICENSE.match(url.strip())
    if not found:
        return None
    return f"CC BY {found[2]}" if found[1] else f"CC0 {found[4]}"


def read_article(data: bytes, name: str = "article.xml") -> Article:
    """Return the parts of a JATS file that the collection uses."""
    article, (root, meta) = jats.read_article(data, name, sentences=False), jats.parse_article(data, name)
    own, year = article_id(article.key), jats.plain(meta.find("pub-date/year"))
    if own is None:
        raise InputError(f"{name}: not an eLife DOI")
    if not year.isdigit():
        raise InputError(f"{name}: no year")
    keywords: list[str] = []
    organisms: list[str] = []
    for group in meta.findall("kwd-group"):  # one file has no group type, only the heading
        label = f"{group.get('kwd-group-type', '')} {jats.plain(group.find('title'))}"
        words = filter(None, map(jats.plain, group.findall("kwd")))
        (organisms if "organism" in label.casefold() else keywords).extend(words)
    digests = [one for one in meta.findall("abstract") if one.get("abstract-type") in DIGESTS]
    people = meta.findall("contrib-group/contrib[@contrib-type='author']")
    holder, license = jats.plain(meta.find("permissions/copyright-holder")), meta.find("permissions/license")
    return Article(
        id=own,
        doi=jats.plain(meta.find("article-id[@pub-id-type='doi']")),
        title=article.title,
        abstract=article.abstract,
        digest=jats.paragraphs_of(digests[-1]) if digests else (),
        heading=short_heading(root),
        subjects=article.subjects,
        keywords=tuple(keywords),
        organisms=tuple(organisms),
        # DOIs that are only in links are not read. They would add eleven citations and change all results.
        cites=_ids(map(jats.plain, root.iterfind("back//ref-list//pub-id[@pub-id-type='doi']"))) - {own},
        related=_ids(article.related) - {own},
        authors=tuple(filter(None, map(_author, people))) or ((holder,) if holder else ()),
        year=int(year),
        copyright=jats.plain(meta.find("permissions/copyright-statement")),
        license=license_name(license.get(_HREF, "") if license is not None else ""),
    )


def short_heading(root: Any) -> str:
    """Return the first heading of 3 to 8 words within the results, or an empty text."""
    for section in root.iterfind("body/sec"):
        if "result" not in jats.plain(section.find("title")).casefold():
            continue
        for title in section.iterfind("sec/title"):
            heading = tidy(jats.plain(title)).rstrip(".")
            if SHORT[0] <= len(heading.split()) <= SHORT[1]:
                return heading
    return ""


def _author(contributor: Any) -> str:
    name = contributor.find("name")
    if name is not None:
        return tidy(" ".join(jats.plain(name.find(part)) for part in ("given-names", "surname", "suffix")))
    group = contributor.find("collab")
    return tidy(group.text or "") if group is not None else ""  # the members are child elements


def _ids(keys: Iterable[str]) -> frozenset[str]:
    return frozenset(id_ for id_ in map(article_id, keys) if id_)


def read_archive(path: Path) -> list[Article]:
    """Return all articles of the archive, sorted by id."""
    articles = []
    try:
        for name, data, problem in read_files(path, jats.ENDINGS, jats.LARGEST):
            if data is None:
                raise InputError(f"{name}: {problem}")
            articles.append(read_article(data, name))
    except InputError as error:
        raise SystemExit(f"build_demo: {error}") from error
    return sorted(articles, key=lambda article: article.id)


# Sentences

# A break: a full stop, closing quotes or brackets, a space, and a word that can start a sentence.
_BREAK = re.compile(r"[.?!]+[\"'”’)\]]*\s+(?=(\S+))")
# A name or a number follows these, so they do not end a sentence.
_TITLES = frozenset(
    ("e.g", "i.e", "cf", "vs", "ca", "approx", "dr", "mr", "mrs", "ms", "prof", "st", "fig", "figs", "no")
)
# These end a sentence only if a capitalized word follows: "Now, Bai et al. (and independently ..."
_ENDINGS = frozenset(("al", "etc", "jr", "sr", "sp", "spp", "u.s", "u.k"))


def _starts_sentence(word: str) -> bool:
    """Return whether a word, after an opening quote, has a capital or digit first, or mixed case (mTOR)."""
    word = word.lstrip("\"'“‘([")
    if not word:
        return False
    if word[0].islower():
        return any(c.isupper() for c in word)
    return word[0].isalnum()


def sentences(text: str) -> list[str]:
    """Split a paragraph of English prose into sentences.

    >>> sentences("In E. coli, Smith et al. found it (e.g. DNA). They did not say why. mTOR is one.")
    ['In E. coli, Smith et al. found it (e.g. DNA).', 'They did not say why.', 'mTOR is one.']

    A single letter ends a sentence if a capital follows ("vitamin C. In many animals"). Digests have many
    of these, and no initials of persons.
    """
    found: list[str] = []
    start = 0
    for stop in _BREAK.finditer(text):
        following = stop[1]
        before = text[start : stop.start()].rsplit(" ", 1)[-1].lstrip("\"'“‘([—–-").casefold()
        if not _starts_sentence(following) or before in _TITLES:
            continue
        if before in _ENDINGS and not following[0].isupper():
            continue
        found.append(text[start : stop.end()].strip())
        start = stop.end()
    rest = text[start:].strip()
    return found + [rest] if rest else found


def first_sentences(texts: Iterable[str], count: int = 2) -> str:
    """Return the first ``count`` sentences. A sentence ends at the end of its paragraph."""
    found = [sentence for text in texts for sentence in sentences(text)]
    return " ".join(found[:count])


# Categories

_NO_ORGANISM = frozenset(("none", "other"))
# Other names that authors use for organisms of eLife's list.
_ORGANISM_NAMES = {
    "a. thaliana": "Arabidopsis",
    "arabidopsis thaliana": "Arabidopsis",
    "drosophila": "D. melanogaster",
    "fruit fly": "D. melanogaster",
    "s.cerevisae": "S. cerevisiae",
    "virus": "viruses",
}


def fold(name: str) -> str:
    """Return a form that is equal for spellings of one category: without case, hyphens and plural s.

    >>> fold("Toll-like receptors") == fold("toll like Receptor")
    True
    """
    words = re.sub(r"[-‐‑‒–—_/\s]+", " ", name.casefold()).split()
    if words:
        words[-1] = _singular(words[-1])
    return " ".join(words)


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _clean(name: str) -> str:
    """Return the name without markup that some files contain as text (``<i>S. cerevisiae</i>``)."""
    return tidy(re.sub(r"</?\w+>", "", name)).strip(" ,;")


class Vocabulary:
    """A vocabulary of subjects, organisms and keywords. A keyword spelled like a subject is that subject.

    The name of a category is its most frequent spelling in the first of the three kinds that contains it.
    """

    def __init__(self, articles: Sequence[Article]) -> None:
        organisms = {_clean(x) for a in articles for x in a.organisms}
        self._short = {x.casefold() for x in organisms if re.match(r"[A-Z]\. [a-z]+$", x)}
        spellings: list[dict[str, Counter[str]]] = [defaultdict(Counter) for _ in range(3)]
        for article in articles:
            for kind, names in enumerate((article.subjects, article.organisms, article.keywords)):
                for name in names:
                    spelling = self._alias(_clean(name))
                    spellings[kind][fold(spelling)][spelling] += 1
        self._names: dict[str, str] = {}
        for counted in spellings:
            for key, counts in counted.items():
                # For equal counts, prefer the lower-case spelling: oxidative stress, not Oxidative Stress.
                self._names.setdefault(key, min(counts, key=lambda s: (-counts[s], s.swapcase())))
        self.subjects = {self._names[key] for key in spellings[0]}
        self.organisms = {self._names[key] for key in spellings[1]} - self.subjects

    def _alias(self, name: str) -> str:
        """Return the usual name of an organism: ``C. intestinalis`` for ``Ciona intestinalis``."""
        known = _ORGANISM_NAMES.get(name.casefold())
        if known:
            return known
        binomial = re.match(r"([A-Z])[a-z]+ ([a-z]+)$", name)
        short = f"{binomial[1]}. {binomial[2]}" if binomial else ""
        return short if short.casefold() in self._short else name

    def _of(self, names: Iterable[str]) -> list[str]:
        keys = (fold(self._alias(_clean(name))) for name in names)
        return [self._names[key] for key in keys if key]

    def subjects_of(self, article: Article) -> list[str]:
        """Return the article's subject headings."""
        return list(dict.fromkeys(self._of(article.subjects)))

    def categories_of(self, article: Article) -> list[str]:
        """Return its subjects, research organisms and keywords, in this order, without duplicates."""
        organisms = (x for x in article.organisms if _clean(x).casefold() not in _NO_ORGANISM)
        found = self._of(article.subjects) + self._of(organisms) + self._of(article.keywords)
        return list(dict.fromkeys(found))


def category_graph(vocabulary: Vocabulary, categories: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """Return (child, parent) pairs, computed only from the documents' categories.

    The parents of a keyword are the most frequent subject of its documents, a second subject if at least half
    of them have it, and the longest category that its words end with: primary visual cortex -> visual cortex
    -> cortex. Each edge needs two documents. An edge from one document would only repeat its subjects, which
    are also the categories of its query. Subjects and organisms have no parent, because the animal of a study
    does not determine the field.
    """
    documents: Counter[str] = Counter()
    subjects: dict[str, Counter[str]] = defaultdict(Counter)
    for names in categories:
        documents.update(names)
        heads = [x for x in names if x in vocabulary.subjects]
        for name in names:
            subjects[name].update(heads)
    by_key = {fold(name): name for name, count in documents.items() if count >= 2}

    pairs: set[tuple[str, str]] = set()
    for name, count in documents.items():
        if name in vocabulary.subjects or name in vocabulary.organisms:
            continue
        ranked = sorted(subjects[name], key=lambda s: (-subjects[name][s], s))
        pairs.update(
            (name, subject)
            for place, subject in enumerate(ranked[:2])
            if subjects[name][subject] >= (2 if place == 0 else max(2, count / 2))
        )
        words = fold(name).split()
        for first in range(1, len(words)):
            broader = by_key.get(" ".join(words[first:]))
            if broader:
                pairs.add((name, broader))
                break
    return sorted(pairs)


# The collection


def split_of(id_: str) -> str:
    """Return the split of an article's query by a hash of its id. New articles do not move others."""
    place = int.from_bytes(hashlib.sha256(id_.encode()).digest()[:4], "big") % 10
    for name, share in SPLITS:
        if place < share:
            return name
        place -= share
    raise AssertionError("the shares sum to ten")


def short_authors(authors: Sequence[str]) -> str:
    """Return ``A``, ``A and B``, or ``A et al.``"""
    return f"{authors[0]} et al." if len(authors) > 2 else " and ".join(authors)


def judgments(articles: Sequence[Article]) -> dict[str, dict[str, int]]:
    """Return article id -> document id -> grade: 2 for itself, 1 for cited, citing and related articles."""
    known = {a.id for a in articles}
    grades: dict[str, dict[str, int]] = {id_: {} for id_ in known}
    for article in articles:
        for other in (article.cites | article.related) & known:
            grades[article.id][other] = 1
            grades[other][article.id] = 1
    for id_ in known:
        grades[id_][id_] = 2
    return grades


def build(articles: Sequence[Article]) -> dict[str, bytes]:
    """Return the collection's files: path -> content."""
    articles = [a for a in articles if a.license is not None]
    known = {a.id for a in articles}
    vocabulary = Vocabulary(articles)
    categories = [vocabulary.categories_of(a) for a in articles]
    graph = category_graph(vocabulary, categories)
    grades = judgments(articles)

    corpus: list[dict[str, Any]] = []
    queries: list[dict[str, Any]] = []
    short: list[dict[str, Any]] = []
    qrels: dict[str, list[tuple[str, ...]]] = {name: [] for name, _ in SPLITS}
    attribution: list[tuple[str, ...]] = []
    for article, names in zip(articles, categories, strict=True):
        assert article.license is not None
        corpus.append(
            {
                "_id": article.id,
                "title": article.title,
                "text": article.abstract,
                "categories": names,
                "links": sorted(article.cites & known),
                "lang": "en",
                "doi": article.doi,
                "authors": short_authors(article.authors),
                "year": article.year,
                "license": article.license,
            }
        )
        attribution.append(
            (
                article.id,
                "; ".join(article.authors),
                str(article.year),
                article.title,
                f"https://doi.org/{article.doi}",
                article.license,
                article.copyright,
            )
        )
        text = first_sentences(article.digest)
        if not text:
            continue
        query = f"q:{article.id}"
        headings = vocabulary.subjects_of(article)
        queries.append({"_id": query, "text": text, "categories": headings, "lang": "en"})
        if article.heading:
            short.append({"_id": query, "text": article.heading, "lang": "en"})
        judged = sorted(grades[article.id].items(), key=lambda pair: (-pair[1], pair[0]))
        qrels[split_of(article.id)].extend((query, document, str(grade)) for document, grade in judged)

    files = {
        "attribution.tsv.gz": _gzip(
            _tsv(("id", "authors", "year", "title", "source", "license", "copyright"), attribution)
        ),
        "categories.tsv": _tsv(("child", "parent"), graph),
        "corpus.jsonl.gz": _gzip(_json_lines(corpus)),
        "queries.jsonl.gz": _gzip(_json_lines(queries)),
        "short-queries.jsonl.gz": _gzip(_json_lines(short)),
    }
    for name, rows in qrels.items():
        files[f"qrels/{name}.tsv"] = _tsv(("query-id", "corpus-id", "score"), rows)
    return files


def _json_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records).encode()


def _tsv(header: Sequence[str], rows: Iterable[Sequence[str]]) -> bytes:
    # tidy() has removed tabs and line breaks from all fields.
    return "".join("\t".join(row) + "\n" for row in (header, *rows)).encode()


def _gzip(content: bytes) -> bytes:
    """Compress without name and time, so that equal content gives equal bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as handle:
        handle.write(content)
    return buffer.getvalue()


def main() -> None:
    """Build the collection and print its files."""
    parser = argparse.ArgumentParser(description="Build the demo collection from eLife articles.")
    parser.add_argument("archive", type=Path, help="tar archive of JATS XML files, one an article")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to write")
    options = parser.parse_args()
    for name, content in sorted(build(read_archive(options.archive)).items()):
        path = options.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        print(f"{len(content):>9,}  {name}")


if __name__ == "__main__":
    main()
