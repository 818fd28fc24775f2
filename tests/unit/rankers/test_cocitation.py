"""Properties of co-citation networks."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Mention


def pairs(network, level):
    keys, _ = network.levels[level].pair_counts()
    pairs = (divmod(key, len(network)) for key in keys.tolist())
    return sorted("".join(sorted(network.keys[one] for one in pair)) for pair in pairs)


mentions = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), max_size=12
)
papers = st.dictionaries(st.sampled_from(["p", "q", "r"]), mentions)


def nest(found):
    """Return mentions whose sentences lie in one paragraph, and whose paragraphs lie in one section."""
    return [Mention(ref, s, 3 * s + p, 9 * s + 3 * p + one) for ref, s, p, one in found]


@given(papers)
def test_properties_of_every_network(papers):
    read = {name: nest(found) for name, found in papers.items()}
    network = CoCitations.from_papers(read.items())
    at_level = [set(pairs(network, level)) for level in LEVELS]
    assert all(finer <= coarser for finer, coarser in pairwise(at_level))
    for level, place in zip(LEVELS, (3, 2, 1, None)):
        expected = {
            "".join(sorted((one[0], other[0])))
            for found in read.values()
            for one in found
            for other in found
            if one[0] < other[0] and (place is None or one[place] == other[place])
        }
        assert pairs(network, level) == sorted(expected)
        assert network.levels[level].pairs() == len(expected)
        for ref, key in enumerate(network.keys):
            mates = network.neighbors(ref, level).tolist()
            assert {"".join(sorted(key + network.keys[one])) for one in mates} == {
                pair for pair in expected if key in pair
            }
            assert all(network.levels[level].shared(ref, mate) for mate in mates)
    again = CoCitations.from_papers([*reversed(list(read.items())), *read.items()])
    assert [pairs(again, level) for level in LEVELS] == [pairs(network, level) for level in LEVELS]
