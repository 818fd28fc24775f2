"""The claims of the papers: one hand-written table. ``page.py`` computes the verdicts.

Each claim has one measure. A claim without a result has its verdict here, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from results import NO_DATA, NOT_RUN

TITLES = {
    "003": "003: text and meta-categories",
    "002": "002: S2Net and the projections",
    "000": "000: an encoder that learns from links",
    "001": "001: co-citation hierarchies",
    "004": "004: relatedness by graph components",
}


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and the comparison that tests it.

    text:    the claim.
    section: where the paper makes it.
    test:    (table, collection, setting) of the results.
    systems: two systems. ``above``: the first has the higher value; ``below``: the lower one; ``equal``: the
        difference is below 0.01.
    measure: the measure, or two. With two, the claim is that the difference is larger for the second one.
    verdict: a verdict without a comparison, and ``reason``.
    """

    text: str
    section: str
    test: tuple[str, str, str] = ("", "", "")
    systems: tuple[str, str] = ("", "")
    measure: str | tuple[str, str] = ""
    rule: Literal["above", "below", "equal"] = "above"
    verdict: str = ""
    reason: str = ""


def no_data(text: str, section: str, reason: str) -> Claim:
    """Return a claim that no available collection can test."""
    return Claim(text, section, verdict=NO_DATA, reason=reason)


def not_run(text: str, section: str, reason: str) -> Claim:
    """Return a claim whose test was not run."""
    return Claim(text, section, verdict=NOT_RUN, reason=reason)


_COSINE, _MLP, _PRESET = "cosine head", "MLP head", "`--preset paper`"
_INFERRED, _GIVEN = f"{_COSINE}, categories inferred", f"{_COSINE}, categories given"
_FULL, _TEXT, _META = "tfidf,text,meta", "tfidf,text", "tfidf,meta"
_NDCG = "NDCG, 1,000"
_FAIR = "random weights, 6 layers of width 128"
_PAIRS = ("dimensions", "debian.de", "4,791 pairs")
_GRADES = ("grade 2 against grade 1", "debian.de", "from OPCA, k = 300, all pairs")
_TITLES6 = ("co-cited references", "eLife", "MiniLM, 6 layers, titles of 24 tokens")
_TITLES_RANDOM = ("co-cited references", "eLife", f"{_FAIR}, 400 steps of 64, titles of 24 tokens")
_WHOLE = ("table 2", "ecbplus", "6 layers")
_ABLATION = ("table 3", "ecbplus", "6 layers")
_CF = ("links", "cf", _FAIR)


def finds_links(text: str, section: str, systems: tuple[str, str]) -> Claim:
    """Return a claim about the links of cf that an encoder finds."""
    return Claim(text, section, _CF, systems, "R@10")


def finds_cocited(
    text: str, section: str, systems: tuple[str, str], test: tuple[str, str, str] = _TITLES6
) -> Claim:
    """Return a claim about the articles that a sentence of eLife cites together."""
    return Claim(text, section, test, systems, "MAP sentence")


CENTRAL: dict[str, tuple[str, Claim, str]] = {
    "003": (
        "categories improve a ranking, and stacking is better than one joint model",
        Claim("", "", ("retrieved", "debian.it", _INFERRED), (_FULL, _TEXT), _NDCG),
        "150 dev and 400 test queries; 3,177 train queries (wikispeedia) and 16,873 (debian.it), the paper"
        " has 298,000 to 762,000. With the"
        " categories of the relevant document itself, which the collections copy to the query, the gain is"
        " large, but no test of the paper",
    ),
    "002": (
        "S2Net is better than OPCA and the other projections at each dimension",
        Claim("", "", _PAIRS, ("s2net", "opca"), "MRR, k = 1,000"),
        "one collection, one run, 4,791 train pairs; the paper has 43,380. Above the vectors that it projects"
        " only from k = 100",
    ),
    "000": (
        "structure and semantics together are better than semantics only",
        finds_links("", "", ("quintuplet", "semantics")),
        "1,239 documents and a small encoder with random weights, since every pretrained one here has learned"
        " from citations; the paper has BERT and up to 100,000s of documents",
    ),
    "001": (
        "co-citation teaches an encoder more than direct citation does",
        finds_cocited("", "", ("sentence", "direct"), _TITLES_RANDOM),
        "it asks for co-cited articles, which favors co-citation; for subjects, direct citation is better."
        " A small encoder with random weights, since MiniLM has learned from citations; titles of 24 tokens"
        " and 25,600 triplets, the paper has SciBERT, abstracts and 1.3 million",
    ),
    "004": (
        "contrasts of graph components improve a classifier of pairs",
        Claim("", "", _WHOLE, ("graph-component", "classifier"), "accuracy"),
        "one collection of 8,297 train pairs, whose components are complete: it cannot test transitivity, the"
        " idea of the paper. Without GC-NCE the gain is the same",
    ),
}
"""Paper -> central claim, its fair test, and the limit of this test."""

CLAIMS: dict[str, list[Claim]] = {
    "003": [
        Claim("Text and categories, weighted with tf-idf, are above text", "table 4",
              ("retrieved", "debian.it", _INFERRED), (_FULL, _TEXT), _NDCG),
        Claim("the same", "table 4", ("retrieved", "wikispeedia", _INFERRED), (_FULL, _TEXT), _NDCG),
        Claim("Text and categories, weighted with tf-idf, are above categories", "table 4",
              ("retrieved", "debian.it", _INFERRED), (_FULL, _META), _NDCG),
        Claim("the same", "table 4", ("retrieved", "wikispeedia", _INFERRED), (_FULL, _META), _NDCG),
        Claim("Stacking the scores of text and categories is above text, among random documents",
              "5.4.1, table 3", ("pool-random", "debian.it", _INFERRED), ("text,meta", "text"), _NDCG),
        Claim("the same", "5.4.1, table 3", ("pool-random", "wikispeedia", _INFERRED), ("text,meta", "text"),
              _NDCG),
        Claim("One model of text and categories (joint) is above text, among random documents",
              "5.2, tables 2 and 3", ("pool-random", "wikispeedia", _COSINE), ("joint", "text"), _NDCG),
        Claim("the same", "5.2, tables 2 and 3", ("pool-random", "debian.it", _MLP), ("joint", "text"),
              _NDCG),
        Claim("and this gain grows with the number of documents", "5.2",
              ("pool-random", "wikispeedia", _COSINE), ("joint", "text"), ("NDCG, 40", _NDCG)),
        not_run("joint, and more than one seed, with `--preset paper`", "5.2",
                "`run_003.py DATA --settings paper --seeds 3`: 20 epochs of 4 layers of 1,600 on 2 cores"),
        Claim("Stacking is above joint (patents)", "5.4.1, table 3",
              ("pool-random", "wikispeedia", _COSINE), ("text,meta", "joint"), _NDCG),
        Claim("the same", "5.4.1, table 3", ("pool-random", "debian.it", _MLP), ("text,meta", "joint"),
              _NDCG),
        Claim("Weighted with tf-idf, stacking is above joint", "6", ("retrieved", "wikispeedia", _COSINE),
              (_FULL, "tfidf,joint"), _NDCG),
        Claim("Categories only are far below text only", "tables 2 and 3",
              ("pool-random", "debian.it", _INFERRED), ("meta", "text"), _NDCG, "below"),
        Claim("the same", "tables 2 and 3", ("pool-random", "wikispeedia", _INFERRED), ("meta", "text"),
              _NDCG, "below"),
        Claim("Plain reranking of 1,000 documents is below tf-idf", "5.4.2, table 4",
              ("pool-first", "debian.it", _INFERRED), ("text,meta", "tfidf"), _NDCG, "below"),
        Claim("the same", "5.4.2, table 4", ("pool-first", "wikispeedia", _INFERRED), ("text,meta", "tfidf"),
              _NDCG, "below"),
        Claim("Weighted reranking is above tf-idf", "5.4.2, table 4",
              ("pool-first", "debian.it", _INFERRED), (_FULL, "tfidf"), _NDCG),
        Claim("the same", "5.4.2, table 4", ("pool-first", "wikispeedia", _INFERRED), (_FULL, "tfidf"),
              _NDCG),
        Claim("tf-idf is strong if it searches with a translation of the query", "5.3",
              ("translation", "debian.it", "tf-idf, 1,000 candidates"), ("translated", "original"), "nDCG"),
        no_data("70 % of the pairs share no category; highly relevant documents share more", "4.1.2",
                "the categories of a query are copied from its document of grade 2, so both follow from the"
                " data"),
        no_data("The same on Japanese patents and on Wikipedia in three languages", "4",
                "neither collection is available"),
    ],
    "002": [
        Claim("S2Net is above OPCA at each dimension", "4.1, figure 2", _PAIRS, ("s2net", "opca"),
              "MRR, k = 1,000"),
        Claim("OPCA is the best of the others", "4.1, figure 2", _PAIRS, ("opca", "cca"), "MRR, k = 1,000"),
        Claim("The gap is larger at low dimensions", "4.1", _PAIRS, ("s2net", "opca"),
              ("MRR, k = 1,000", "MRR, k = 50")),
        not_run("S2Net at 500 dimensions is as good as OPCA at 2,000", "4.1",
                "`run_002.py` with 2,000 in `DIMENSIONS`; at 1,000, OPCA has 0.8869"
                " and S2Net at 500 0.9114"),
        Claim("S2Net is above the cosine of the vectors that it projects", "4.2", _PAIRS,
              ("s2net", "input vectors"), "MRR, k = 100"),
        Claim("It separates labels better than these vectors (AUC)", "4.2, table 2", _GRADES,
              ("s2net", "input vectors"), "AUC"),
        Claim("and OPCA does not", "4.2, table 3",
              ("grade 2 against grade 1", "debian.de", "from LSI, k = 50, 2,000 queries"),
              ("opca", "input vectors"), "AUC per query", "below"),
        Claim("In one language it is above these vectors", "4.2",
              ("one language", "cf", "pairs of titles and texts"), ("s2net", "input vectors"), "nDCG"),
        Claim("the same", "4.2", ("one language", "cacm", "in a stack"), ("s2net", "tfidf"), "nDCG"),
        Claim("OPCA is a better start than random weights", "4.1, footnote 2",
              ("starts", "debian.de", "k = 1,000, 4,791 queries"), ("opca", "random"), "MRR"),
        Claim("gamma makes no difference if it is large enough", "3.2",
              ("options", "debian.de", "2,000 queries, k = 50"), ("gamma 20", "default"), "dev NDCG",
              "equal"),
        Claim("Early stopping is better than staying near the start", "3.2",
              ("options", "debian.de", "2,000 queries, k = 50"), ("default", "beta 0.00001"), "dev NDCG"),
        Claim("More pairs are better", "4.3", ("train queries", "debian.de", "k = 50"),
              ("4,791 queries", "2,000 queries"), "MRR"),
        not_run("k chosen on dev; PCA, PLSA, JPLSA, CPLSA and HDLR below S2Net", "4.1, tables 1 and 2",
                "these methods are not implemented"),
        no_data("On English and Spanish Wikipedia, and on advertisements", "4.1, 4.2",
                "neither collection is available"),
    ],
    "000": [
        finds_links("Structure and semantics are above semantics only (gamma 1)", "4.5, figure 8",
                    ("quintuplet", "semantics")),
        finds_links("and above structure only (gamma 0)", "4.5, figure 8", ("quintuplet", "structure")),
        finds_links("The loss of the paper finds more links than the start", "4.3", ("quintuplet", "start")),
        finds_links("Levels of PageRank are above drawing any neighbor", "3.2",
                    ("contrastive+positives=levels", "contrastive")),
        finds_links("Five inputs are above a triplet", "1, 3.3", ("quintuplet", "triplet")),
        finds_links("Margins that shrink with the level are above one margin", "4.4",
                    ("quintuplet", "fixed-margin")),
        Claim("gamma 0.25 and 0.5 are equal", "4.5, figure 8", _CF, ("quintuplet+gamma=0.25", "quintuplet"),
              "R@10", "equal"),
        Claim("gamma 0.75 and 0.5 are equal", "4.5, figure 8", _CF, ("quintuplet+gamma=0.75", "quintuplet"),
              "R@10", "equal"),
        Claim("The semantic margins 0.5 to 1.5 are equal", "4.5, figure 9", _CF,
              ("quintuplet+semantic_margin=1.5", "quintuplet"), "R@10", "equal"),
        not_run("Sentences around a citation find the cited document; sentences find their document",
                "4.3, tables 2 and 3", "measured on eLife only from a start that has learned from citations"),
        not_run("Above language-model training with as many steps", "4.3, tables 1 and 2",
                "needs a language model that has not learned from citations, such as BERT"),
        not_run("Passages of 128 tokens", "4.2", "here 64; it takes a GPU"),
        not_run("Distances are ordered by level", "4.4, figures 4 and 7", "no script"),
        no_data("Above SentBERT, Word2Vec and SGC on SciDocs, Scholarly, arXivCS and ACL-ARC", "4.3",
                "neither the collections nor these models are available"),
    ],
    "001": [
        finds_cocited("Co-citation teaches more than direct citation, from random weights", "4.2, table 2",
                      ("sentence", "direct"), _TITLES_RANDOM),
        finds_cocited("and teaches an encoder that knows no citations", "4.1, table 1",
                      ("sentence", "start"), _TITLES_RANDOM),
        Claim("SPECTER is better at topics (MAG)", "4.2", _TITLES_RANDOM, ("direct", "sentence"), "subjects"),
        finds_cocited("From MiniLM, which knows citations, co-citation is above them", "4.2, table 2",
                      ("sentence", "direct")),
        finds_cocited("Sentence is above Section", "4.2, table 2", ("sentence", "section")),
        finds_cocited("and above Paragraph", "4.2, table 2", ("sentence", "paragraph")),
        finds_cocited("Hard negatives hurt", "4.3, figure 3", ("sentence", "hard 1.0")),
        finds_cocited("Co-citation teaches MiniLM, titles", "4.1, table 1", ("sentence", "start")),
        Claim("the same, title and abstract", "4.1, table 1",
              ("co-cited references", "eLife", "MiniLM, 6 layers, title and abstract of 128 tokens"),
              ("sentence", "start"), "MAP sentence"),
        Claim("SPECTER is better at topics (MAG), from MiniLM", "4.2", _TITLES6, ("direct", "sentence"),
              "subjects"),
        not_run("`--preset cocitation`, two epochs", "3.4",
                "`run_001.py DATA --steps 2004 --strategies preset` takes a GPU; 40 of 2,004 steps"
                " with two layers are in the numbers, and decide nothing"),
        not_run("All strategies with title and abstract, six layers", "4.2",
                "`run_001.py DATA --tokens 128 --abstracts --strategies direct,paragraph,section` takes a"
                " GPU"),
        no_data("Above SPECTER, SciBERT and nine others on SciDocs; t-SNE", "4.1, table 1, figure 5",
                "neither the collections nor those models are available"),
    ],
    "004": [
        Claim("Training on the graph is above the plain classifier", "table 2", _WHOLE,
              ("graph-component", "classifier"), "accuracy"),
        Claim("Without GC-NCE it is worse", "table 3", _ABLATION,
              ("graph-component", "gc_nce=false"), "accuracy"),
        Claim("Without momentum contrast it is worse", "table 3", _ABLATION,
              ("graph-component", "moco=false"), "accuracy"),
        Claim("GC-NCE gives more than momentum contrast", "table 3", _ABLATION,
              ("moco=false", "gc_nce=false"), "accuracy"),
        Claim("Pairs sampled from the graph (k = 2) add to the contrasts", "table 2, last rows",
              ("table 4", "ecbplus", "a fifth of the related pairs"), ("hops=2", "graph-component"),
              "accuracy"),
        not_run("Sampled pairs without the contrasts are above the classifier; k = 2 is the best",
                "tables 2, 4",
                "`run_004.py DATA --keep 0.2 --hows classifier,classifier+hops=2,classifier+hops=3`"
                " takes a GPU"),
        not_run("`--preset paper`, uncut", "4",
                "`run_004.py DATA --hows paper+objective=classifier,paper` takes a GPU; cut to two layers and"
                " 64 steps, the"
                " classifier learned nothing"),
        no_data("Relatedness is transitive: longer paths of the graph help", "1, 3.1",
                "the components of ecbplus are complete: each related pair is labeled"),
        no_data("On WORD, CNSE and CNSS, with BERT, RoBERTa and XLNet, above graph networks", "table 2",
                "neither the collections nor these models are available"),
    ],
}  # fmt: skip
