"""Yih, Toutanova, Platt, Meek (2011): compare S2Net with other projections, by training size and start.

    python benchmarks/papers/run_002.py DATA --collections debian.de
    python benchmarks/papers/run_002.py DATA --collections debian.de --filter
    python benchmarks/papers/run_002.py DATA --list

Each text is a query for its partner among the
texts of all test pairs, in both directions, see ``projections.py``. Completed steps are skipped.

``--filter`` measures the second task of the paper. The paper filters advertisements by labels. Here only the
documents of grades 2 and 1 of a query are ranked: grade 2 is positive, grade 1 negative. Measures: AUC(rel=2)
and NDCG over the queries with both grades. S2Net starts from LSI and trains on ``--train`` queries, on:

preferences: pairs of grades within a query (``graded`` and ``judged``).
pairs:       documents of grade 2 against all other documents.

``--projected 300,500,1000`` compares S2Net with the cosine of the vectors that it projects. S2Net starts from
OPCA, as in the paper, and trains on all train queries. Measures: MRR of the partners, and the second task.
Pooled AUC is measured over all pairs of the second task together, as in the paper. Its p-value is from a
randomization test over the pairs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from pairs import judgments, text_pairs
from projections import Corpus, Mates, make_trainer, narrow, read, some, term_matrix
from running import Step, arguments, carry_out

from rerank.engines.base import SearchRequest
from rerank.evaluation.measures import evaluate_runs
from rerank.evaluation.pair_measures import auc, paired_test
from rerank.evaluation.significance import compare, randomization_test
from rerank.formats import read_queries
from rerank.order import rank
from rerank.progress import Progress
from rerank.rankers.projection.config import ProjectionConfig
from rerank.rankers.projection.ranker import Projection, Terms
from rerank.rankers.training.data import TrainingData
from rerank.records import Qrels, Query
from rerank.workflows.ingest import ingest
from rerank.workflows.training_data import Inputs, TrainReport, training_data
from rerank.workspace import Workspace

SIZES = (500, 1000, 2000, 4000, 8000, 16000)
"""Numbers of train queries. The last step of a collection uses all train queries."""
STARTS = ("opca", "cllsi", "random")
DIMENSIONS = (50, 100, 200, 500, 1000)
METHODS = ("s2net", "opca", "cca", "cllsi", "lsi")
GRADES = "grade 2 against grade 1"
BASELINE = "input vectors"
"""Cosine of the vectors that S2Net projects. The paper calls it TFIDF."""


@cache
def loaded(data: Path, work: Path, name: str) -> tuple[TrainingData, Mates]:
    """Return the training data and test pairs of a collection. Create the workspace if it is missing."""
    folder, _, lang = name.partition(".")
    suffix = f".{lang}" if lang else ""
    queries = read_queries(str(data / folder / f"queries{suffix}.jsonl.gz"))
    split = judgments(data / folder, lang or None, None)
    there = work / f"{name}-projections"
    if (there / "rerank.toml").exists():
        workspace = Workspace.open(str(there))
    else:
        workspace = ingest(str(there), [str(data / folder / f"corpus{suffix}.jsonl.gz")]).workspace
    found = read(workspace, queries, split)
    return found, Mates(workspace, queries, split["test"])


def measured(ranks: np.ndarray) -> dict[str, float]:
    """Return MRR and top-1 of both directions."""
    return {"MRR": round(float(ranks.mean()), 4), "top-1": round(float((ranks == 1).mean()), 4)}


def fitted(
    options: argparse.Namespace, name: str, size: int | None, seed: int, **config: Any
) -> dict[str, Any]:
    """Fit S2Net on ``size`` train queries. Return MRR and top-1 of the test pairs, in both directions."""
    data, mates = loaded(options.data, options.work, name)
    train = data.train if size is None else some(data.train, size)
    part = TrainingData(**{**vars(data), "train": train})
    one = make_trainer(part, ProjectionConfig(seed=seed, **config)).fit("s2net")
    assert isinstance(one.ranker, Projection)
    by_size = size is not None or (config["init"] == "random" and config["dim"] < 1000)
    setting = f"k = {config['dim']:,}" + ("" if by_size else f", {len(train):,} queries")
    system = f"{len(train):,} queries" if by_size else config["init"]
    values = {**measured(mates.rank(one.ranker)), "dev NDCG": one.dev}
    return {"collection": name, "setting": setting, "seed": seed, "values": {system: values}, "tests": []}


def dimensions(options: argparse.Namespace, name: str, dims: Sequence[int]) -> dict[str, Any]:
    """Compare all methods and the vectors that they project, at several dimensions."""
    data, mates = loaded(options.data, options.work, name)
    trainer = make_trainer(data, ProjectionConfig())
    vectors = trainer.vectors
    before = mates.unprojected(vectors.terms)
    ranks: dict[str, dict[int, np.ndarray]] = {BASELINE: dict.fromkeys(dims, before)}
    for method in METHODS:
        # Eigenvectors are ordered: the largest dimension contains the smaller ones.
        for largest in dims if method == "s2net" else [max(dims)]:
            trainer = make_trainer(data, ProjectionConfig(dim=largest, init="random"))
            trainer.vectors = vectors
            ranker = trainer.fit(method).ranker
            assert isinstance(ranker, Projection)
            for dim in [largest] if method == "s2net" else dims:
                ranks.setdefault(method, {})[dim] = mates.rank(narrow(ranker, dim))
    values: dict[str, dict[str, float]] = {}
    tests = []
    for method, found in ranks.items():
        for dim, of in found.items():
            both = {f"{measure}, k = {dim:,}": value for measure, value in measured(of).items()}
            values.setdefault(method, {}).update(both)
    for first, second in (*combinations(METHODS, 2), *((method, BASELINE) for method in METHODS)):
        for dim in dims:
            p = randomization_test((ranks[first][dim] - ranks[second][dim]).mean(axis=0), seed=0)
            tests.append([first, second, f"MRR, k = {dim:,}", p])
    setting = f"{len(data.train):,} pairs"
    count = {"test pairs": len(mates.queries), "terms": len(vectors.terms.names)}
    return {"collection": name, "setting": setting, "values": values, "tests": tests, "n": count}


@cache
def labeled(data: Path, work: Path, name: str) -> tuple[Workspace, list[Query], Qrels]:
    """Return the workspace, the test queries with documents of both grades, and their judgments."""
    folder, _, lang = name.partition(".")
    judged = judgments(data / folder, lang or None, None)["test"]
    suffix = f".{lang}" if lang else ""
    asked = [
        query
        for query in read_queries(str(data / folder / f"queries{suffix}.jsonl.gz"))
        if len({grade for grade in judged.get(query.id, {}).values() if grade > 0}) > 1
    ]
    kept = Qrels((query.id, d, grade) for query in asked for d, grade in judged[query.id].items())
    return Workspace.open(str(work / f"{name}-projections")), asked, kept


Scores = dict[str, tuple[list[str], Any]]
"""Query -> document ids and their scores."""


def scored(
    workspace: Workspace,
    queries: list[Query],
    candidates: Mapping[str, Iterable[str]],
    ranker: Projection | Terms | None,
) -> Scores:
    """Score the candidates of each query by a projection, its input vectors, or tf-idf of the engine."""
    found = {}
    for query in queries:
        ids = sorted(candidates[query.id])
        if ranker is None:
            scored = workspace.engine.find(SearchRequest(query.text, ids=ids, first_stage="tfidf"))
            ids, scores = list(scored.ids), np.asarray(scored.scores)
        elif isinstance(ranker, Terms):
            documents = [d for d in workspace.engine.get(ids) if d is not None]
            q, d = (term_matrix(ranker, Corpus.read(texts)) for texts in ([query], documents))
            scores = (d @ q.T).toarray()[:, 0]
        else:
            vectors = ranker.encode_documents([d for d in workspace.engine.get(ids) if d is not None])
            scores = vectors.astype(np.float32) @ ranker.encode_query(query)
        found[query.id] = ids, scores
    return found


def one_language(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Train S2Net on pairs in one language. Return NDCG of the judged queries with 1,000 candidates."""
    folder = options.data / name
    corpus, there = str(folder / "corpus.jsonl.gz"), options.work / f"{name}-one-language"
    workspace = Workspace.open(str(there)) if there.exists() else ingest(str(there), [corpus]).workspace
    inputs = Inputs(pairs=list(text_pairs(corpus)), first_stage="tfidf", infer=False)
    data = training_data(workspace, inputs, TrainReport(), Progress())
    trainer = make_trainer(data, ProjectionConfig(init="lsi"))
    terms, fit = trainer.vectors.terms, trainer.fit("s2net")
    assert isinstance(fit.ranker, Projection)
    qrels = Qrels(
        (query, document, grade)
        for split in judgments(folder, None, 3).values()
        for query, judged in split.items()
        for document, grade in judged.items()
    )
    asked = [query for query in read_queries(str(folder / "queries.jsonl.gz")) if query.id in qrels]
    found = {
        query.id: workspace.engine.find(SearchRequest(query.text, first_stage="tfidf", depth=1000))
        for query in asked
    }
    at = workspace, asked, {query: candidates.ids for query, candidates in found.items()}
    runs = {way: ordered(scored(*at, ranker)) for way, ranker in (("s2net", fit.ranker), (BASELINE, terms))}
    runs["tfidf"] = {query: list(candidates.ids) for query, candidates in found.items()}
    evaluation = evaluate_runs(runs, qrels, ["nDCG"])
    return {
        "collection": name,
        "setting": "pairs of titles and texts",
        "values": {way: {"nDCG": evaluation.mean(way, "nDCG")} for way in runs},
        "tests": [["s2net", one.stack, "nDCG", one.p] for one in compare(evaluation, "s2net")],
        "n": {"queries": len(evaluation.query_ids), "pairs": len(inputs.pairs)},
    }


def ordered(scores: Scores) -> dict[str, list[str]]:
    """Rank the documents of each query by their scores."""
    return {query: [ids[i] for i in rank(ids, values)] for query, (ids, values) in scores.items()}


def pooled(scores: Scores, base: Scores, qrels: Qrels) -> dict[str, float]:
    """Return AUC of grade 2 over all pairs together, for both scores, and p of the difference."""
    pairs = [(query, document) for query in base for document in sorted(qrels[query])]
    labels = [qrels[query][document] > 1 for query, document in pairs]
    both = []
    for of in (scores, base):
        known = {(q, d): value for q, (ids, values) in of.items() for d, value in zip(ids, values)}
        both.append([float(known.get(pair, 0.0)) for pair in pairs])
    p = paired_test([(both[0], 0.0)], [(both[1], 0.0)], labels, permutations=1000)["AUC"]
    return {"pairs": len(pairs), "auc": auc(both[0], labels), "input": auc(both[1], labels), "p": p}


def projected(options: argparse.Namespace, name: str, dim: int, init: str) -> dict[str, Any]:
    """Compare S2Net, trained on all train queries, with its input vectors: partners and grades."""
    data, mates = loaded(options.data, options.work, name)
    trainer = make_trainer(data, ProjectionConfig(dim=dim, init=init))
    terms = trainer.vectors.terms
    ranker = trainer.fit("s2net").ranker
    assert isinstance(ranker, Projection)
    ranks, before = mates.rank(ranker), mates.unprojected(terms)
    at = labeled(options.data, options.work, name)
    scores = {"s2net": scored(*at, ranker), BASELINE: scored(*at, terms)}
    result = by_grade({way: ordered(one) for way, one in scores.items()}, at[2])
    pairs = pooled(scores["s2net"], scores[BASELINE], at[2])
    result["values"]["s2net"] |= {**measured(ranks), "AUC": pairs["auc"]}
    result["values"][BASELINE] |= {**measured(before), "AUC": pairs["input"]}
    p = randomization_test((ranks - before).mean(axis=0), seed=0)
    result["tests"] += [["s2net", BASELINE, "MRR", p], ["s2net", BASELINE, "AUC", pairs["p"]]]
    result["n"]["pairs"] = pairs["pairs"]
    return {"collection": name, "setting": f"from {init.upper()}, k = {dim}, all pairs", **result}


def filtered(options: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    """Rank documents of grade 2 above documents of grade 1."""
    data, _ = loaded(options.data, options.work, name)
    at = labeled(options.data, options.work, name)
    part = TrainingData(**{**vars(data), "train": some(data.train, options.train)})
    shared = {"dim": options.dim, "seed": seed}
    ways = {
        "lsi": ("lsi", shared),
        "opca": ("opca", shared),
        "s2net, pairs": ("s2net", shared),
        "s2net, preferences": ("s2net", {**shared, "graded": True, "judged": True}),
    }
    terms = make_trainer(part, ProjectionConfig()).vectors.terms
    runs = {BASELINE: ordered(scored(*at, terms)), "tf-idf of the engine": ordered(scored(*at, None))}
    for way, (method, config) in ways.items():
        ranker = make_trainer(part, ProjectionConfig(**config)).fit(method).ranker
        assert isinstance(ranker, Projection)
        runs[way] = ordered(scored(*at, ranker))
    setting = f"from LSI, k = {options.dim}, {options.train:,} queries"
    return {"collection": name, "setting": setting, "seed": seed, **by_grade(runs, at[2])}


def by_grade(runs: Mapping[str, Mapping[str, list[str]]], qrels: Qrels) -> dict[str, Any]:
    """Return nDCG, AUC of grade 2 per query, and tests against the input vectors."""
    evaluation = evaluate_runs(runs, qrels, ["AUC(rel=2)", "nDCG"])
    names = {"AUC(rel=2)": "AUC per query", "nDCG": "nDCG"}
    values = {}
    for way in runs:
        values[way] = {names[measure]: evaluation.mean(way, measure) for measure in evaluation.measures}
    tests = [[one.stack, BASELINE, names[one.measure], one.p] for one in compare(evaluation, BASELINE)]
    return {"values": values, "tests": tests, "n": {"queries": len(evaluation.query_ids)}}


def steps(options: argparse.Namespace) -> Iterator[Step]:
    """Yield the steps. The name of a step contains every setting that changes its result."""
    for name in options.collections:
        if options.one_language:
            yield Step(f"{name}-one-language", "one language", partial(one_language, options, name))
            continue
        folder, _, lang = name.partition(".")
        most = len(judgments(options.data / folder, lang or None, None)["train"])
        yield Step(f"{name}-dimensions", "dimensions", partial(dimensions, options, name, DIMENSIONS))
        for dim in options.projected:
            yield Step(f"{name}-projected-{dim}-opca", GRADES, partial(projected, options, name, dim, "opca"))
        for seed in range(options.seeds):
            for size in [*(one for one in SIZES if one < most), None]:
                settings = {"dim": options.dim, "init": "random"}
                run = partial(fitted, options, name, size, seed, **settings)
                yield Step(f"{name}-{options.dim}-size-{size or 'all'}-{seed}", "train queries", run)
            few = f"{name}-{options.dim}-of-{options.train}"
            if options.filter:
                yield Step(f"{few}-filter-{seed}", GRADES, partial(filtered, options, name, seed))
            for init in STARTS if options.starts else ():
                run = partial(fitted, options, name, None, seed, dim=1000, init=init)
                yield Step(f"{name}-start-{init}-{seed}", "starts", run)


def main() -> None:
    """Run the missing steps."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--collections",
        type=lambda text: text.split(","),
        default=["debian.de", "debian.it"],
        help="folders of DATA, separated by commas. Default: debian.de,debian.it",
    )
    parser.add_argument(
        "--dim",
        type=int,
        default=50,
        help="dimension for the training sizes and --filter. Default: %(default)s",
    )
    parser.add_argument("--starts", action="store_true", help="also compare starts at k = 1,000; takes hours")
    parser.add_argument("--filter", action="store_true", help="also measure the second task, on grades")
    parser.add_argument(
        "--train", type=int, default=2000, help="number of train queries for --filter. Default: %(default)s"
    )
    parser.add_argument("--one-language", action="store_true", help="run only S2Net on pairs in one language")
    parser.add_argument(
        "--projected",
        type=lambda text: [int(one) for one in text.split(",")],
        default=[],
        metavar="K,K",
        help="also compare S2Net from OPCA with its input vectors, at these dimensions",
    )
    options = parser.parse_args()
    carry_out("002", steps(options), options)


if __name__ == "__main__":
    main()
