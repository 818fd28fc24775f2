"""Keys of cited texts."""

from __future__ import annotations

import re

_DOI = re.compile(r"10\.\d{2,9}(?:\.\d+)*/\S+")
_RESOLVER = re.compile(r"(?:https?://)?(?:(?:dx\.)?doi\.org/|doi:\s*)?(?=10\.)", re.IGNORECASE)
_PMID = re.compile(
    r"(?:(?:https?://)?(?:www\.ncbi\.nlm\.nih\.gov/pubmed|pubmed\.ncbi\.nlm\.nih\.gov)/|pmid:?\s*)(\d+)/?",
    re.IGNORECASE,
)
_PMCID = re.compile(
    r"(?:(?:https?://)?(?:www\.ncbi\.nlm\.nih\.gov/pmc|pmc\.ncbi\.nlm\.nih\.gov)/articles/)?(?:PMC)?(\d+)/?",
    re.IGNORECASE,
)


def find_doi(text: str) -> str:
    """Return the DOI in a text, in lower case; empty if none.

    >>> find_doi("https://doi.org/10.7554/eLife.00003")
    '10.7554/elife.00003'
    """
    dois = _DOI.findall(text.lower())
    return next(iter(dois), "")


def reference_key(*, doi: str = "", pmid: str = "", pmcid: str = "", title: str = "", year: str = "") -> str:
    """Return the DOI, else the PMID, else the PMCID, else title and year, else empty.

    >>> reference_key(doi="https://doi.org/10.1000/ABC", pmid="77")
    '10.1000/abc'
    >>> reference_key(pmid="77", title="On Yeast"), reference_key(title="On Yeast: II", year="1999")
    ('pmid:77', 'title:on yeast ii|1999')
    """
    normalized_doi = find_doi(doi)
    if normalized_doi:
        return normalized_doi
    if pmid.strip().isdigit():
        return f"pmid:{pmid.strip()}"
    pmcid_match = _PMCID.fullmatch(pmcid.strip())
    if pmcid_match is not None:
        return f"PMC{pmcid_match[1]}"
    words = re.findall(r"\w+", title.casefold())
    if not words:
        return ""
    return f"title:{' '.join(words)}|{year}"


def named_key(name: str) -> str:
    """Normalize a DOI, PMID or PMCID; other names are unchanged.

    >>> [named_key(name) for name in ("doi:10.1000/ABC", "PMID: 77", "pmc42", "b17")]
    ['10.1000/abc', 'pmid:77', 'PMC42', 'b17']
    """
    name = name.strip()
    resolver = _RESOLVER.match(name)
    if resolver is not None:
        doi = name[resolver.end() :].lower()
        if _DOI.fullmatch(doi):
            return doi
    pmid = _PMID.fullmatch(name)
    if pmid is not None:
        return f"pmid:{pmid[1]}"
    pmcid = _PMCID.fullmatch(name)
    if pmcid is None or name.isdigit():
        return name
    return f"PMC{pmcid[1]}"
