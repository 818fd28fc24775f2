"""Measure the cost of full texts and their networks: reading time, memory, triplets.

    python benchmarks/speed/full_texts.py read DATA/elife-jats.tar.xz       # articles with sentences
    python benchmarks/speed/full_texts.py flat DATA/elife-jats.tar.xz --times 50 [--articles 200]
    python benchmarks/speed/full_texts.py pairs DATA/elife-jats.tar.xz      # of references with a DOI
    python benchmarks/speed/full_texts.py triplets DATA/elife-jats.tar.xz   # a million of each strategy
    python benchmarks/speed/full_texts.py key DATA/cacm                     # compare with its own counts
    python benchmarks/speed/full_texts.py growth                            # up to 30 million mentions

``flat`` reads the articles repeatedly with changed ids. It prints the memory after each round. The memory
must not grow.

``growth`` builds each network in a separate process and prints the peak memory. Citation counts of its
references follow a power law, as in real papers. A paper has 50 mentions, 2 in each sentence.
"""

from __future__ import annotations

import argparse
import io
import re
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import numpy as np

from rerank.formats import read_corpus
from rerank.formats.jats import read_jats
from rerank.rankers.dense.triplets import TripletSampler
from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.cocitation import LEVELS, CoCitations
from rerank.records import Document


def peak() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)


def clock() -> tuple[float, float]:
    """Return the elapsed time and the CPU time in seconds."""
    return time.perf_counter(), time.process_time()


def since(begin: tuple[float, float]) -> str:
    return " s, ".join(f"{now - then:.1f}" for now, then in zip(clock(), begin)) + " s of processor"


def read(archive: Path) -> None:
    begin, sentences = clock(), [len(article.sentences) for article in read_jats(archive)]
    print(f"{len(sentences)} articles, {sum(sentences)} sentences in {since(begin)}; peak {peak():.0f} MB")


def flat(archive: Path, times: int, articles: int | None) -> None:
    """Read the articles ``times`` times.

    Each round changes the prefix of every DOI, in articles and in references.
    """
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder) / "again.tar"
        for number in range(times):
            with tarfile.open(archive) as source, tarfile.open(one, "w") as target:
                for place, member in enumerate(source):
                    if articles is not None and place >= articles:
                        break
                    if (file := source.extractfile(member)) is not None:
                        data = re.sub(rb"10\.(\d{4,9}/)", rb"10.%d\1" % (1000 + number), file.read())
                        member.size = len(data)
                        target.addfile(member, io.BytesIO(data))
            begin, keys = clock(), [article.document().id for article in read_jats(one)]
            said = f"{len(keys)} articles in {since(begin)}; {keys[-1]}; {peak():.0f} MB"
            print(f"round {number + 1}: {said}", flush=True)


def articles(archive: Path) -> Iterator[Document]:
    return (article.document() for article in read_jats(archive))


def sample(network: CoCitations, usable: np.ndarray, wanted: int) -> None:
    for name in LEVELS:
        sampler = TripletSampler(network, usable, name)
        rng = np.random.default_rng(0)
        targets = rng.permutation(sampler.targets()).tolist()
        begin, drawn = clock(), 0
        for target in cycle(targets):
            drawn += len(sampler.draw(target, rng))
            if drawn >= wanted:
                break
        seconds = time.perf_counter() - begin[0]
        print(
            f"  {name:24} {drawn:>9,} triplets in {since(begin)}: {drawn / seconds:,.0f} a second", flush=True
        )


def triplets(archive: Path, wanted: int) -> None:
    citations = Citations.from_documents(articles(archive))
    begin = clock()
    network = citations.network
    print(f"network: {len(network)} references in {since(begin)}")
    sizes = ", ".join(f"{level} {network.levels[level].pairs()}" for level in LEVELS)
    print(f"pairs: {sizes}; peak {peak():.0f} MB")
    sample(network, np.array([key in citations.titles for key in network.keys]), wanted)


def pairs(archive: Path) -> None:
    """Print the pairs of references with a DOI. Other authors count only these references."""
    papers = Citations.from_documents(articles(archive)).papers()
    network = CoCitations.from_papers(
        (paper, [one for one in found if one.reference.startswith("10.")]) for paper, found in papers
    )
    print(f"{len(network)} references")
    for level in LEVELS:
        print(f"{level:10} {network.levels[level].pairs():>9,} pairs")


def key(folder: Path) -> None:
    """Compare our counts with the counts in ``cocitation.tsv`` of the collection.

    Our count is the number of documents that are linked with both references of a pair. All counts of the
    file are even: each common citing document counts twice.
    """
    network = Citations.from_documents(read_corpus(folder / "corpus.jsonl.gz")).network
    whole = network.levels["document"]
    rows = (line.split("\t") for line in (folder / "cocitation.tsv").read_text("utf-8").splitlines()[1:])
    counts = {(a, b): int(count) for a, b, count in rows}
    place = {key: number for number, key in enumerate(network.keys)}
    ours = {(a, b): whole.shared(place[a], place[b]) for a, b in counts}
    print(f"{len(counts)} pairs, {sum(count % 2 for count in counts.values())} of odd counts")
    for what, of in (
        ("as many", [ours[pair] * 2 == count for pair, count in counts.items()]),
        ("more", [ours[pair] * 2 > count for pair, count in counts.items()]),
        ("fewer", [ours[pair] * 2 < count for pair, count in counts.items()]),
        ("none", [not ours[pair] for pair in counts]),
    ):
        print(f"{sum(of):>5} {what}")
    print(f"{whole.pairs()} pairs by links taken both ways")


def synthetic(references: int, mentions: int, wanted: int) -> None:
    """Build a network of synthetic papers and draw triplets from it.

    A paper has 50 mentions in 25 sentences: 5 sections, each with 2 paragraphs of 2 or 3 sentences.
    """
    rng = np.random.default_rng(0)
    papers = mentions // 50
    rows = np.empty((papers * 50, 4), np.int32)
    places = np.cumsum(np.arange(1, references + 1) ** -0.6)
    for at in range(0, len(rows), 1_000_000):  # few references are cited often, most rarely
        some = rows[at : at + 1_000_000]
        some[:, 0] = np.searchsorted(places, rng.random(len(some)) * places[-1])
    sentence = np.tile(np.arange(50, dtype=np.int32) // 2, papers)
    rows[:, 3], rows[:, 2], rows[:, 1] = sentence, sentence * 2 // 5, sentence // 5
    del sentence
    begin = clock()
    sizes = np.full(papers, 50, np.int64)
    network = CoCitations.from_mentions(tuple(f"r{one}" for one in range(references)), rows, sizes)
    del rows
    cited = np.diff(network.levels["document"].of_refs.indptr)
    print(f"{references:,} references, {papers * 50:,} mentions, the most cited in {cited.max():,} papers")
    print(f"  network in {since(begin)}; peak {peak():.0f} MB")
    sample(network, np.ones(len(network), bool), wanted)
    print(f"  peak {peak():.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["read", "flat", "pairs", "triplets", "key", "growth", "synthetic"])
    parser.add_argument("archive", type=Path, nargs="?", metavar="ARCHIVE|FOLDER")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--articles", type=int, help="Number of articles to read. Default: all.")
    parser.add_argument(
        "--triplets", type=int, help="Triplets of each strategy. Default: 1,000,000; 20,000 for growth."
    )
    parser.add_argument("--references", type=int, default=600_000)
    parser.add_argument("--mentions", type=int, default=30_000_000)
    args = parser.parse_args()
    if args.what == "growth":
        for part in (8, 4, 2, 1):
            sizes = ("--references", args.references // part, "--mentions", args.mentions // part)
            command = [sys.executable, __file__, "synthetic", *sizes, "--triplets", args.triplets or 20_000]
            subprocess.run([str(one) for one in command], check=True)
    elif args.what == "synthetic":
        synthetic(args.references, args.mentions, args.triplets or 20_000)
    elif args.archive is None:
        parser.error(f"{args.what}: missing ARCHIVE|FOLDER. Add the path as the second argument.")
    elif args.what == "read":
        read(args.archive)
    elif args.what == "flat":
        flat(args.archive, args.times, args.articles)
    elif args.what == "key":
        key(args.archive)
    elif args.what == "pairs":
        pairs(args.archive)
    else:
        triplets(args.archive, args.triplets or 1_000_000)


if __name__ == "__main__":
    main()
