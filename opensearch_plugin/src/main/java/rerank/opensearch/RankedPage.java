package rerank.opensearch;

import java.util.List;
import org.apache.lucene.search.TotalHits;
import org.opensearch.search.SearchHit;
import org.opensearch.search.SearchHits;

/**
 * The user's page of a search, before its documents are fetched. isReranked: whether it has the order of the service. hits: of
 * the page, with their scores. ranked: number of hits, or of groups, that pages are cut from. removed: number of hits below
 * the smallest probability. hasMoreGroups: whether groups of OpenSearch follow. total: null if not requested.
 */
record RankedPage(boolean isReranked, List<ScoringResponse.Hit> hits, int ranked, int removed, boolean hasMoreGroups, TotalHits total,
                  float highest) {
    /** candidates: what was scored. answer: with the outcome of the plan, which may differ from that of the answer. */
    static RankedPage of(SearchPlan plan, SearchHits found, ScoringRequest candidates, Added added, ScoringResponse answer) {
        boolean isReranked = plan.outcome.equals("reranked");
        boolean removes = isReranked && plan.minScore != null;
        boolean withRest = removes == false; // hits after the candidates have no probability
        List<ScoringResponse.Hit> hits = candidates.ranked(isReranked ? answer.hits() : null, withRest);
        List<ScoringResponse.Hit> ranked = plan.groups == null ? hits : plan.groups.first(hits, candidates);
        int removed = removes ? candidates.hits().size() - hits.size() : 0;
        boolean mayHaveMore = withRest && candidates.hits().size() >= plan.depth;
        boolean hasMoreGroups = plan.groups != null && mayHaveMore && plan.from + plan.size > ranked.size();
        float best = hits.isEmpty() ? Float.NaN : hits.get(0).score();
        return new RankedPage(isReranked, plan.page(ranked), ranked.size(), removed, hasMoreGroups,
            total(plan, found.getTotalHits(), removes, hits, candidates, added), isReranked ? best : found.getMaxScore());
    }

    private static TotalHits total(SearchPlan plan, TotalHits counted, boolean removes, List<ScoringResponse.Hit> hits,
                                   ScoringRequest candidates, Added added) {
        if (removes && counted != null) {
            return new TotalHits(hits.size(), TotalHits.Relation.EQUAL_TO);
        }
        long unmatched = hits.stream().filter(hit -> candidates.isUnmatched(hit, added)).count();
        return plan.total(counted, (int) unmatched);
    }

    /** The candidates of the page. */
    List<SearchHit> documents(ScoringRequest candidates) {
        return hits.stream().map(hit -> candidates.at(hit.position())).toList();
    }
}
