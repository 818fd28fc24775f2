"""Run LambdaMART of LightGBM on classic features of the best 100 documents by BM25.

    python benchmarks/quality/peers/lambdamart.py OUT/wikispeedia [--ours]

With ``--ours``, it trains on the signals of the stack of auto (features.json). Run ``ours.py`` first.

pip install lightgbm bm25s PyStemmer scikit-learn.

It trains on the train queries. If there are fewer than 50, it trains on the dev queries. With fewer than 50
queries to learn from, cross-validation selects the number of trees, and the model learns from all of them.
"""

from __future__ import annotations

import json

import lightgbm
import numpy as np
from bm25 import Index
from collection import Collection, Costs, Run, arguments, time_queries, write
from sklearn.feature_extraction.text import TfidfVectorizer

TOP = 100
FEW = 50
TREES, PATIENCE = 300, 30


class Features:
    """BM25 score and rank, tf-idf cosines of words and character n-grams, overlap, and lengths."""

    def __init__(self, collection: Collection) -> None:
        self.index = Index(collection)
        self.place = {id: i for i, id in enumerate(collection.ids)}
        self.titles = [title for title, _ in collection.documents.values()]
        # user: lambdamart
        self.words = TfidfVectorizer(sublinear_tf=True)
        self.grams = TfidfVectorizer(
            sublinear_tf=True, analyzer="char_wb", ngram_range=(4, 4), max_features=100_000
        )
        self.by_words = self.words.fit_transform(collection.texts)
        self.by_grams = self.grams.fit_transform(collection.texts)
        self.by_title = self.words.transform(self.titles)
        self.lengths = np.log1p(np.diff(self.by_words.indptr))

    def of(self, text: str) -> tuple[list[str], np.ndarray]:
        """Return the candidates and their features. Shape of the features: (n, 8)."""
        found = dict(list(self.index.search(text).items())[:TOP])
        rows = np.array([self.place[d] for d in found], np.int64)
        words, grams = self.words.transform([text]), self.grams.transform([text])
        scores = np.array(list(found.values()))
        columns = [
            scores,
            scores / (scores.max() if len(scores) else 1),
            np.arange(len(found)),
            (self.by_words[rows] @ words.T).toarray().ravel(),
            (self.by_grams[rows] @ grams.T).toarray().ravel(),
            (self.by_title[rows] @ words.T).toarray().ravel(),
            (self.by_words[rows] > 0).astype(float).dot((words > 0).astype(float).T).toarray().ravel(),
            self.lengths[rows],
        ]
        return list(found), np.stack(columns, axis=1) if len(found) else np.zeros((0, len(columns)))
        # end


Rows = dict[str, tuple[list[str], np.ndarray]]
"""Query id -> candidates and their features."""


def main() -> None:
    options = arguments(__doc__)
    options.add_argument("--ours", action="store_true", help="train on the signals of the stack of auto")
    args = options.parse_args()
    collection = Collection.load(args.folder)
    if args.ours:
        _of_signals(collection, json.loads((collection.folder / "features.json").read_text()))
        return
    learned = "train" if len(collection.qrels["train"]) >= FEW else "dev"
    costs, path = Costs(), collection.folder / "lambdamart.txt"
    with costs.time("indexing"):
        features = Features(collection)
    if not args.answer:
        with costs.time("training"):
            rows = {query: features.of(text) for query, text in collection.of(learned).items()}
            _fit(rows, collection.qrels[learned]).save_model(path)
    model = lightgbm.Booster(model_file=path)

    def search(text: str) -> dict[str, float]:
        return _ranked(model, *features.of(text))

    if args.answer:
        time_queries(collection, "lambdamart", search)
        return
    run = costs.answer(collection.of("test"), search)
    rest = {query: list(features.index.search(text)) for query, text in collection.of("test").items()}
    write(collection, "lambdamart", _with_rest(run, rest), costs, learned=learned)


def _of_signals(collection: Collection, rows: dict[str, Rows]) -> None:
    """Train on dev. The rankers of the signals are already trained on train."""
    costs = Costs()
    dev, test = ({q: (ids, np.array(v)) for q, (ids, v) in rows[part].items()} for part in ("dev", "test"))
    with costs.time("training"):
        model = _fit(dev, collection.qrels["dev"])
    run = {query: _ranked(model, ids, values) for query, (ids, values) in test.items()}
    ours = json.loads((collection.folder / "runs/rerank-auto.json").read_text())["run"]
    write(collection, "lightgbm-ours", _with_rest(run, {q: list(ours[q]) for q in run}), costs)


def _ranked(model: lightgbm.Booster, ids: list[str], values: np.ndarray) -> dict[str, float]:
    """Return minus the rank of each candidate. Ties, which are frequent with few trees, keep their order."""
    order = np.argsort(-np.asarray(model.predict(values)), kind="stable") if ids else []
    return {ids[i]: -float(rank) for rank, i in enumerate(order)}


def _with_rest(run: Run, rest: dict[str, list[str]]) -> Run:
    """Append the remaining documents, in their order."""
    for query, found in rest.items():
        floor = min(run[query].values(), default=0.0)
        run[query] |= {d: floor - 1 - i for i, d in enumerate(d for d in found if d not in run[query])}
    return run


def _fit(rows: Rows, qrels: dict[str, dict[str, int]]) -> lightgbm.Booster:
    """Train on 80 % of the queries. Use the others for early stopping.

    With few queries, cross-validation with five folds selects the number of trees. Then train on all.
    """
    # user:
    parts: list[list[tuple[np.ndarray, list[int]]]] = [[], []]
    for i, (query, (ids, values)) in enumerate(rows.items()):
        grades = [max(qrels[query].get(d, 0), 0) for d in ids]
        if any(grades):
            parts[len(rows) >= FEW and i % 5 == 0].append((values, grades))
    data, *rest = (
        lightgbm.Dataset(
            np.concatenate([v for v, _ in part]),
            np.concatenate([g for _, g in part]),
            group=[len(g) for _, g in part],
            free_raw_data=False,
        )
        for part in parts
        if part
    )
    gains = list(range(max(max(g) for part in parts for _, g in part) + 1))
    settings = {
        "objective": "lambdarank", "learning_rate": 0.05, "num_leaves": 15, "min_child_samples": 50,
        "num_threads": 1, "seed": 0, "label_gain": gains, "eval_at": [10], "metric": "ndcg", "verbosity": -1,
    }  # fmt: skip
    stop, trees = lightgbm.early_stopping(PATIENCE, verbose=False), TREES
    if not rest:
        folds = lightgbm.cv(settings, data, TREES, nfold=5, callbacks=[stop])
        trees = len(folds["valid ndcg@10-mean"])
    return lightgbm.train(settings, data, trees, valid_sets=rest, callbacks=[stop] if rest else [])
    # end


if __name__ == "__main__":
    main()
