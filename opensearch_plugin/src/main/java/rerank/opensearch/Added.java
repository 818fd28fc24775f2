package rerank.opensearch;

import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.opensearch.action.search.SearchResponse;
import org.opensearch.core.index.shard.ShardId;
import org.opensearch.search.SearchHit;

/**
 * Documents that the rankers of a stack retrieve for a search. hits: visible to the user, and meeting the conditions of the
 * query. unmatched: those that the query does not match. reason: why there are none, or null.
 */
record Added(List<SearchHit> hits, Set<Place> unmatched, String reason) {
    /** Name of the user's query in the search for these documents. */
    static final String MATCHED = "rerank_stack.matched";

    /** The place of a document, until it changes. */
    record Place(ShardId shard, long seqNo, long primaryTerm) {
        static Place of(SearchHit hit) {
            return new Place(hit.getShard().getShardId(), hit.getSeqNo(), hit.getPrimaryTerm());
        }
    }

    static Added none(String reason) {
        return new Added(List.of(), Set.of(), reason);
    }

    /** isNamed: whether the query has the name {@link #MATCHED}; otherwise, a document that it matches has a score above 0. */
    static Added of(SearchResponse response, Nearest nearest, boolean isNamed) {
        List<SearchHit> hits = Arrays.stream(response.getHits().getHits())
            .filter(hit -> nearest.uuids().contains(hit.getShard().getShardId().getIndex().getUUID())).toList();
        Set<Place> unmatched = hits.stream()
            .filter(hit -> (isNamed ? Arrays.asList(hit.getMatchedQueries()).contains(MATCHED) : hit.getScore() > 0) == false)
            .map(Place::of).collect(Collectors.toSet());
        if (isNamed) {
            hits.forEach(Added::removeName);
        }
        return new Added(hits, unmatched, null);
    }

    /** These documents and others; only a reason if one part has a reason. */
    Added and(Added others) {
        if (reason != null || others.reason != null) {
            return none(reason != null ? reason : others.reason);
        }
        Set<Place> all = new HashSet<>(unmatched);
        all.addAll(others.unmatched);
        return new Added(Stream.concat(hits.stream(), others.hits.stream()).toList(), all, null);
    }

    private static void removeName(SearchHit hit) {
        Map<String, Float> scores = new LinkedHashMap<>(hit.getMatchedQueriesAndScores()); // in the order of the search
        scores.remove(MATCHED);
        hit.matchedQueriesWithScores(scores);
    }
}
