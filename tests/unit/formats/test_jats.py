"""Articles in JATS: their parts, the places of their citations, and other XML."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import time
import tracemalloc
import zipfile

import pytest

from rerank.common.errors import InputError
from rerank.formats.jats import read_article, read_jats


def reference(number, *, doi=None, pmid=None, title=None, year="2001"):
    ids = f'<pub-id pub-id-type="doi">{doi}</pub-id>' if doi else ""
    ids += f'<pub-id pub-id-type="pmid">{pmid}</pub-id>' if pmid else ""
    named = f"<article-title>{title}</article-title>" if title else ""
    return f'<ref id="b{number}"><element-citation>{named}<year>{year}</year>{ids}</element-citation></ref>'


FIVE = [reference(n, doi=f"10.1000/{n}") for n in range(1, 6)]


def cite(*numbers, text=None):
    ids = " ".join(f"b{n}" for n in numbers)
    return f'<xref ref-type="bibr" rid="{ids}">{text or numbers[0]}</xref>'


def article(body="", references=FIVE, *, more="", doi="10.1000/own", prolog=""):
    return (
        f"{prolog}<article xmlns:xlink='http://www.w3.org/1999/xlink'><front><article-meta>"
        f'<article-id pub-id-type="doi">{doi}</article-id><title-group><article-title>On <i>E. coli</i>'
        f"</article-title></title-group>{more}</article-meta></front>"
        f"{f'<body>{body}</body>' if body is not None else ''}"
        f"<back><ref-list>{''.join(references)}</ref-list></back>"
        "<sub-article><body><p>A review, which is not the article's text.</p></body></sub-article></article>"
    ).encode()


def cited(data):
    """Return (section, paragraph, cited references) of each sentence, with shortened DOIs."""
    read = read_article(data, "x.xml")
    return [
        (one.section, one.paragraph, "".join(k.rpartition("/")[2] for k in one.cites))
        for one in read.sentences
    ]


def test_front_matter_is_read():
    more = (
        '<article-categories><subj-group subj-group-type="display-channel"><subject>Article</subject>'
        '</subj-group><subj-group subj-group-type="heading"><subject>Cell Biology</subject></subj-group>'
        '<subj-group subj-group-type="Discipline-v3"><subject>Biology</subject><subj-group>'
        "<subject>Botany</subject></subj-group></subj-group></article-categories>"
        "<abstract><sec><title>Why</title><p>We  asked.</p></sec>"
        "<p>DOI: x</p></abstract>"
        '<abstract abstract-type="executive-summary"><p>A digest.</p></abstract>'
        "<kwd-group><kwd>yeast</kwd></kwd-group>"
        '<related-article xlink:href="https://doi.org/10.1000/OTHER"/>'
    )
    read = read_article(article("<p>Text.</p>", more=more, doi="https://doi.org/10.1000/Own"), "x.xml")
    assert (read.key, read.title, read.abstract) == ("10.1000/own", "On E. coli", "We asked.")
    document = read.document()
    assert document.categories == ("Cell Biology", "Biology", "Botany", "yeast")
    assert document.links == (*(f"10.1000/{n}" for n in range(1, 6)), "10.1000/other")
    assert document.text == "We asked."
    assert read.document(body=True).text == "Text."


def test_sections_and_paragraphs_are_numbered():
    body = (
        f"<p>Before {cite(1)}.</p>"
        f"<sec><title>One</title><p>First {cite(1)}. Second {cite(2)}.</p>"
        f"<sec><title>Inner</title><p>Third {cite(3)}.</p></sec><p>Outer again {cite(4)}.</p></sec>"
        f"<sec><title>Two</title><list><list-item><p>Item {cite(5)}.</p></list-item></list></sec>"
    )
    read = read_article(article(body), "x.xml")
    assert cited(article(body)) == [
        (0, 0, "1"), (1, 1, "1"), (1, 1, "2"), (2, 2, "3"), (3, 3, "4"), (4, 4, "5")
    ]  # fmt: skip
    assert read.document().extra["citations"][0] == {
        "ref": "10.1000/1", "section": 0, "paragraph": 0, "sentence": 0, "text": "Before 1."
    }  # fmt: skip


def test_captions_notes_and_tables_are_not_text():
    body = (
        f"<fig><caption><p>Caption {cite(1)}.</p></caption></fig><p>Text<fn><p>note {cite(2)}</p></fn>"
        f" goes on {cite(3)}.</p><table-wrap><table><tr><td><p>{cite(4)}</p></td></tr></table></table-wrap>"
    )
    assert [one.text for one in read_article(article(body), "x.xml").sentences] == ["Text goes on 3."]
    assert cited(article(body)) == [(0, 0, "3")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"[{cite(1)}–{cite(4)}]", "1234"),
        (f"<sup>{cite(1)}</sup>-<sup>{cite(3)}</sup>,{cite(5)}", "1235"),
        (f"[{cite(2)}], [{cite(4)}]", "24"),
        (cite(1, 3, 5, text="1,3,5"), "135"),
        (f"({cite(1, text='Li, 2001')}–{cite(4, text='Wu, 2003')})", "14"),
        (f"[{cite(3)}–{cite(3)}] {cite(3)}", "3"),
    ],
)
def test_citation_ranges_and_lists_are_expanded(text, found):
    assert cited(article(f"<p>As known {text}.</p>")) == [(0, 0, found)]


def test_list_items_in_paragraphs_are_separate_sentences():
    """A sentence does not continue in the next item, and text inside a paragraph is read once."""
    items = (f"<list-item><p>{what} {cite(n)}</p></list-item>" for what, n in (("cats", 2), ("dogs", 3)))
    inside = f"<list>{''.join(items)}</list>"
    data = article(
        f"<p>We like {cite(1)}{inside} and{cite(4)}.</p><boxed-text><p>But {inside}</p></boxed-text>"
    )
    read = read_article(data, "x.xml")
    assert [(one.paragraph, one.text) for one in read.sentences] == [
        *((0, text) for text in ("We like 1", "cats 2", "dogs 3", "and4.")),
        *((1, text) for text in ("But", "cats 2", "dogs 3")),
    ]
    assert [one.cites for one in read.sentences[:4]] == [(f"10.1000/{n}",) for n in range(1, 5)]


def test_sentences_do_not_end_at_abbreviations():
    body = f"<p>Smith et al. {cite(1)} used E. coli (Fig. 2, e.g. {cite(2)}). We did not {cite(3)}.</p>"
    assert cited(article(body)) == [(0, 0, "12"), (0, 0, "3")]


def test_numbers_after_the_full_stop_belong_to_the_previous_sentence():
    body = f"<p>It is known.<sup>{cite(1)}</sup> All was.<sup>{cite(2)}–{cite(4)}</sup> None {cite(5)}.</p>"
    assert cited(article(body)) == [(0, 0, "1"), (0, 0, "234"), (0, 0, "5")]
    assert read_article(article(body), "x.xml").body == "It is known. All was. None 5."


def test_reference_keys():
    references = [
        reference(1, doi="10.1000/A"),
        reference(2, doi="https://doi.org/10.1000/a"),
        reference(3, pmid="77"),
        reference(4, title="The Title: <i>of</i> it"),
        reference(5, year=""),
        reference(6, doi="10.1000/own"),
    ]
    read = read_article(
        article(f"<p>{cite(1)} {cite(2)} {cite(5)} {cite(6)} {cite(9)}.</p>", references), "x"
    )
    assert list(read.references) == ["10.1000/a", "pmid:77", "title:the title of it|2001"]
    assert [one.cites for one in read.sentences] == [("10.1000/a",)]


def test_articles_in_archives_and_folders_are_read(tmp_path):
    one, two = article("<p>One.</p>", doi="10.1000/one"), article("<p>Two.</p>", doi="10.1000/two")
    (tmp_path / "folder" / "in").mkdir(parents=True)
    (tmp_path / "folder" / "b.xml").write_bytes(one)
    (tmp_path / "folder" / "in" / "a.xml.gz").write_bytes(gzip.compress(two))
    for kind in ("gz", "xz", "bz2"):
        with tarfile.open(tmp_path / f"all.tar.{kind}", f"w:{kind}") as archive:
            archive.add(tmp_path / "folder", "x")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(tmp_path / "folder" / "b.xml", "b.xml")
        archive.write(tmp_path / "folder" / "in" / "a.xml.gz", "a.xml.gz")
        archive.writestr("readme.txt", "no article")
    for name in ("folder", "all.tar.gz", "all.tar.xz", "all.tar.bz2", "all.zip"):
        assert {a.key for a in read_jats(tmp_path / name)} == {"10.1000/one", "10.1000/two"}


BOMB = (
    '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>'
)
SECRET = '<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/hostname">]>'


def test_articles_inside_answers_of_archives_are_read():
    plain = article(f"<p>Known {cite(1)}.</p>")
    inside = plain.replace(b"<article ", b"<article xmlns='http://jats.nlm.nih.gov/ns/archiving/1.3/' ")
    answer = b"<OAI-PMH xmlns='http://www.openarchives.org/OAI/2.0/'><record>%b</record></OAI-PMH>" % inside
    for data in (inside, answer):
        assert read_article(data, "x.xml") == read_article(plain, "x.xml")


@pytest.mark.parametrize(
    ("prolog", "text"),
    [
        (BOMB, "Here aaaaaaaaaa there."),
        (SECRET, "Here &a; there."),
        ('<!DOCTYPE a [<!ENTITY a "β">]>', "Here β there."),
        ('<!DOCTYPE a PUBLIC "-//NLM//DTD JATS v1.1//EN" "JATS.dtd">', "Here &a; there."),
        ("", "Here &a; there."),
    ],
)
def test_no_external_entity_is_loaded(prolog, text):
    assert read_article(article("<p>Here &a; there.</p>", prolog=prolog), "x.xml").body == text


def test_entities_do_not_expand_without_a_limit():
    declared = [f'<!ENTITY e{n} "{f"&e{n - 1};" * 50}">' for n in range(1, 9)]
    prolog = f'<!DOCTYPE a [<!ENTITY e0 "{"a" * 50}">{"".join(declared)}]>'
    with pytest.raises(InputError, match="invalid XML"):
        read_article(article("<p>&e8;</p>", prolog=prolog), "x.xml")


@pytest.mark.parametrize("prolog", ["", '<!DOCTYPE a PUBLIC "x" "y.dtd">', '<!DOCTYPE a [<!ENTITY m "é">]>'])
def test_entities_of_html_and_iso_are_read(prolog):
    body = "<p>&beta;-catenin in M&uuml;ller cells, 5&nbsp;&mu;m &lt; 6, &bgr;&OHgr;&hellip;</p>"
    assert read_article(article(body, prolog=prolog), "x.xml").body == (
        "β-catenin in Müller cells, 5 μm < 6, βΩ…"
    )


TEX = (
    "<inline-formula><alternatives><tex-math>\\usepackage{amsmath} $\\beta$</tex-math><mml:math "
    'xmlns:mml="http://www.w3.org/1998/Math/MathML"><mml:semantics><mml:mi>β</mml:mi><mml:annotation>'
    "\\beta</mml:annotation></mml:semantics></mml:math></alternatives></inline-formula>"
)


def abstract(*abstracts, title="On yeast"):
    """Return the title and the text of an article with these abstracts."""
    data = article(more="".join(abstracts)).replace(b"On <i>E. coli</i>", title.encode())
    document = read_article(data, "x.xml").document()
    return document.title, document.text


def test_titles_have_no_latex_notes_or_joined_words():
    assert abstract(title=f"Role of {TEX}2 in mice")[0] == "Role of β2 in mice"
    assert abstract(title="First line<break/>second line")[0] == "First line second line"
    assert (
        abstract(title='Yeast<xref ref-type="fn" rid="f">*</xref><fn id="f"><p>Note.</p></fn>')[0] == "Yeast"
    )
    assert abstract(title="Ca<sup>2+</sup> and H<sub>2</sub>O")[0] == "Ca2+ and H2O"


def test_abstracts_have_no_latex_notes_or_joined_words():
    items = "<list><list-item><p>one</p></list-item><list-item><p>two</p></list-item></list>"
    texts = {
        f"<p>The {TEX} binds.</p>": "The β binds.",
        f"<p>We show:{items}</p><p>End.</p>": "We show: one two End.",
        f"<p>We show:</p>{items}": "We show: one two",
        "<p>A line<break/>break.<fn><p>A note.</p></fn></p>": "A line break.",
        "<def-list><def-item><term>TB</term><def><p>tuberculosis</p></def></def-item></def-list>": (
            "TB tuberculosis"
        ),
        "<sec><title>Why</title><p>We asked.</p><sec><p>Again.</p></sec></sec>": "We asked. Again.",
        "Text without <italic>a paragraph</italic>.": "Text without a paragraph.",
    }
    for content, text in texts.items():
        assert abstract(f"<abstract>{content}</abstract>")[1] == text


def test_the_best_abstract_is_read():
    graphical = '<abstract abstract-type="graphical"><p>Picture.</p></abstract>'
    summary = '<abstract abstract-type="summary"><p>Summary.</p></abstract>'
    plain = "<abstract><p>Plain.</p></abstract>"
    assert abstract(graphical, summary, plain)[1] == "Plain."
    assert abstract(graphical, summary)[1] == "Summary."
    assert abstract(graphical, "<abstract/>")[1] == "Picture."


def test_compound_and_nested_keywords_are_read():
    more = (
        "<kwd-group><compound-kwd><compound-kwd-part content-type='code'>D01</compound-kwd-part>"
        "<compound-kwd-part>yeast</compound-kwd-part><compound-kwd-part>Candida</compound-kwd-part>"
        "</compound-kwd><kwd>cell</kwd><nested-kwd><kwd>outer</kwd><nested-kwd><kwd>inner</kwd></nested-kwd>"
        "</nested-kwd></kwd-group>"
    )
    keywords = read_article(article(more=more), "x.xml").keywords
    assert keywords == ("yeast, Candida", "cell", "outer", "inner")


@pytest.mark.parametrize("text", ["yeast; cell wall; Candida", "yeast, cell wall , Candida."])
def test_keywords_in_one_text_are_read(text):
    more = f"<kwd-group><unstructured-kwd-group>{text}</unstructured-kwd-group></kwd-group>"
    assert read_article(article(more=more), "x.xml").keywords == ("yeast", "cell wall", "Candida")


def test_scanned_pages_and_definitions_are_text():
    body = (
        "<preformat>SCANNED\nPAGE</preformat><sec><def-list><def-item><term>TB</term><def><p>tuberculosis</p>"
        "</def></def-item></def-list></sec>"
    )
    assert read_article(article(body), "x.xml").body == "SCANNED PAGE\nTB tuberculosis"


def test_articles_without_doi_have_their_own_ids(tmp_path):
    for folder, pmc in (("a", '<article-id pub-id-type="pmc">7</article-id>'), ("b", ""), ("c/d", "")):
        (tmp_path / folder).mkdir(parents=True)
        data = article().replace(b'<article-id pub-id-type="doi">10.1000/own</article-id>', pmc.encode())
        (tmp_path / folder / "main.NXML").write_bytes(data)
    assert [read.key for read in read_jats(tmp_path)] == ["PMC7", "b/main.NXML", "c/d/main.NXML"]
    assert [read.key for read in read_jats(tmp_path / "b")] == ["main.NXML"]
    assert [read.key for read in read_jats(tmp_path / "b" / "main.NXML")] == ["main.NXML"]
    with tarfile.open(tmp_path / "all.TAR", "w") as archive:
        archive.add(tmp_path / "b" / "main.NXML", "PMC9/main.NXML")
    assert [read.key for read in read_jats(tmp_path / "all.TAR")] == ["PMC9/main.NXML"]


def test_compressed_articles_are_read(tmp_path):
    for name, compress in (
        ("a.xml.GZ", gzip.compress),
        ("b.xml.bz2", bz2.compress),
        ("c.xml.xz", lzma.compress),
    ):
        (tmp_path / name).write_bytes(compress(article(doi=f"10.1000/{name[0]}")))
    assert [read.key for read in read_jats(tmp_path)] == ["10.1000/a", "10.1000/b", "10.1000/c"]


def test_long_ranges_and_nested_reference_lists_take_bounded_memory_and_time():
    references = [reference(n, doi=f"10.1000/{n}") for n in range(1, 2001)]
    body = f"<p>{''.join(f'{cite(1)}–{cite(n)} ' for n in range(2, 2001))}</p>"
    nested = "<ref-list>" * 200 + "".join(references) + "</ref-list>" * 200
    data = article(body, [nested])
    tracemalloc.start()
    begin = time.process_time()
    read = read_article(data, "x.xml")
    seconds = time.process_time() - begin
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(read.references) == 2000
    assert peak < 60_000_000  # 2,000 ranges of 1,000 references need more than 200 MB
    assert seconds < 10
    cites = read_article(
        article(f"<p>As {cite(1)}–{cite(101)} and {cite(1)}–{cite(102)}.</p>", references), "x"
    )
    assert len(cites.sentences[0].cites) == 102
