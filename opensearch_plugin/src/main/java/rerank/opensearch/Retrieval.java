package rerank.opensearch;

import static org.opensearch.action.support.ContextPreservingActionListener.wrapPreservingContext;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.opensearch.action.StepListener;
import org.opensearch.action.search.SearchRequest;
import org.opensearch.action.search.SearchResponse;
import org.opensearch.common.xcontent.LoggingDeprecationHandler;
import org.opensearch.common.xcontent.XContentHelper;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.action.ActionListener;
import org.opensearch.core.common.bytes.BytesReference;
import org.opensearch.core.xcontent.MediaTypeRegistry;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.core.xcontent.XContentParser;
import org.opensearch.index.query.AbstractQueryBuilder;
import org.opensearch.index.query.BoolQueryBuilder;
import org.opensearch.index.query.QueryBuilder;
import org.opensearch.index.query.QueryBuilders;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.search.internal.SearchContext;
import rerank.opensearch.ScoringClient.Failure;

/**
 * Finds the documents that the rankers of a stack retrieve for one search, while its candidates are searched. The service names
 * them; a second search, with the rights of the user and under the conditions of the query, finds them. Every failure only
 * means that nothing is added.
 */
final class Retrieval {
    private static final Logger logger = LogManager.getLogger(Retrieval.class);
    /** Queries that score every document that they match above 0. */
    private static final Set<String> POSITIVE = Set.of("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix",
        "multi_match", "combined_fields", "query_string", "simple_query_string");
    private static final String HYBRID = "hybrid";

    private final SearchPlan plan;
    private final RerankPlugin plugin;
    private final StepListener<Nearest> nearest = new StepListener<>();
    private final StepListener<Added> added = new StepListener<>();
    /** The query and the conditions of the search that was planned. */
    private final Conditioned planned;
    /** Why nothing can be added to this search, or null. */
    final String reason;
    /** Whether the candidates search also finds these documents, so that aggregations count them. */
    final boolean isUnion;
    private final long begin = System.nanoTime();
    private volatile Runnable cancelCall = () -> { };
    private byte[] unitedBytes; // of the query that also finds the named documents
    private volatile long waited; // nanoseconds before the candidates search

    /** A query, its JSON, and its conditions with the post filter. bytes: of the JSON. json: read from them. */
    private record Conditioned(QueryBuilder query, QueryBuilder postFilter, byte[] bytes, byte[] postFilterBytes, Object json,
                               List<Object> conditions, List<Object> all) {
        static Conditioned of(SearchSourceBuilder source, byte[] bytes, List<String> wordFields) throws IOException {
            Object json = source.query() == null ? Map.of("match_all", Map.of()) : map(bytes);
            List<Object> conditions = Conditions.of(json, wordFields), all = new ArrayList<>(conditions);
            byte[] postFilter = SearchPlan.json(source.postFilter());
            if (source.postFilter() != null) {
                all.add(map(postFilter));
            }
            return new Conditioned(source.query(), source.postFilter(), bytes, postFilter, json, conditions, all);
        }

        /** Whether this is still the query of a source: a processor can also change a query in its place. */
        boolean isOf(SearchSourceBuilder source, QueryBuilder united, byte[] unitedBytes) throws IOException {
            QueryBuilder expected = united == null ? query : united;
            return source.query() == expected && source.postFilter() == postFilter
                && Arrays.equals(SearchPlan.json(expected), united == null ? bytes : unitedBytes)
                && Arrays.equals(SearchPlan.json(postFilter), postFilterBytes);
        }

        private static Map<String, Object> map(byte[] bytes) {
            return XContentHelper.convertToMap(JsonXContent.jsonXContent, bytes, 0, bytes.length, true);
        }
    }

    Retrieval(SearchPlan plan, RerankPlugin plugin) {
        this.plan = plan;
        this.plugin = plugin;
        String why = refusal(plan.user, plan);
        Conditioned query = null;
        if (why == null) {
            try {
                query = Conditioned.of(plan.user, plan.queryJson(), plan.asker.config.words());
                why = query.bytes.length > Protocol.LONGEST_QUERY ? "query_too_long" : null;
            } catch (Conditions.UnknownException e) {
                why = "conditions";
            } catch (IOException | RuntimeException e) {
                logger.warn("the conditions of a search cannot be read", e);
                why = "error";
            }
        }
        planned = query;
        reason = why;
        isUnion = plan.user.aggregations() != null;
    }

    /** Why nothing can be added to such a search, or null. */
    private static String refusal(SearchSourceBuilder source, SearchPlan plan) {
        return source.minScore() != null ? "min_score"
            : source.rescores() != null && source.rescores().isEmpty() == false ? "rescore"
            : source.terminateAfter() != SearchContext.DEFAULT_TERMINATE_AFTER ? "terminate_after"
            : source.pointInTimeBuilder() != null ? "pit"
            : plan.user.collapse() != null ? "collapse"
            : plan.asker.config.fetchesPage() == false ? "fetch" // an earlier response processor may remove hits
            : source.aggregations() != null && HYBRID.equals(name(source.query())) ? "aggregations" // it cannot be in a bool
            : plan.indices == 0 ? "indices" // of other clusters
            : null;
    }

    private static String name(QueryBuilder query) {
        return query == null ? null : query.getName();
    }

    /** Ask the service, and search for the documents that it names. */
    void begin() {
        if (reason != null) {
            added.onResponse(Added.none(reason));
            return;
        }
        byte[] body;
        try {
            body = body();
        } catch (IOException | RuntimeException e) {
            logger.warn("the documents of rankers cannot be requested", e);
            added.onResponse(Added.none("error"));
            return;
        }
        CancellationWatch watch = new CancellationWatch(plan);
        ActionListener<Nearest> answered = wrapPreservingContext(ActionListener.runBefore(
            Reranking.ending(added, nearest::onResponse, nearest::onFailure), watch::end), plugin.threadContext);
        SearchRequest search = new SearchRequest(plan.request); // later processors can change the request
        nearest.whenComplete(found -> {
            String why = isUnion ? reasonNotToUnite(found) : null;
            if (why == null) {
                search(found, planned, search, added);
            } else {
                added.onResponse(Added.none(why));
            }
        }, e -> added.onResponse(Added.none(Failure.of(e).reason)));
        ScoringClient.Request request = new ScoringClient.Request(Protocol.RETRIEVE_PATH, body, plan.turn,
            plan.asker.config.retrievalTimeout(), 4_000_000, body.length > SearchPlan.LONG_QUERY);
        cancelCall = plan.asker.service.call(request, Nearest::read, answered);
        watch.begin(cancelCall);
    }

    private byte[] body() throws IOException {
        try (XContentBuilder json = JsonXContent.contentBuilder()) {
            json.startObject().field("stack", plan.stack).field("stack_allowed", plan.isStackAllowed).field("first", plan.depth);
            json.field("conditions", planned.all.isEmpty() == false && isUnion == false);
            json.rawField("query", new ByteArrayInputStream(planned.bytes), MediaTypeRegistry.JSON);
            json.field("rerank", plan.ext.values.isEmpty() ? null : plan.ext.values);
            json.field("min_score", plan.minScore).field("shadow", plan.asker.config.shadow());
            json.field("timeout", plan.asker.service.firstLimit(plan.asker.config.retrievalTimeout()) / 1000.0);
            return BytesReference.toBytes(BytesReference.bytes(json.endObject()));
        }
    }

    /** Stop the call of the service; a search ends with the search of the user. */
    void end() {
        cancelCall.run();
    }

    /**
     * Make the search for candidates also find the named documents, before it starts. Its scores do not change: their clauses
     * add 0.
     */
    void unite(SearchSourceBuilder candidates, Runnable then) {
        nearest.whenComplete(found -> {
            if (reasonNotToUnite(found) == null) {
                BoolQueryBuilder named = withConditions(found, planned);
                QueryBuilder query = planned.query == null ? QueryBuilders.matchAllQuery() : planned.query;
                candidates.query(QueryBuilders.boolQuery().should(query).should(named)).size(candidates.size() + found.size());
                unitedBytes = SearchPlan.json(candidates.query());
                plan.united = candidates.query();
                plan.unitedSize = found.size();
            }
            waited = System.nanoTime() - begin;
            then.run();
        }, e -> {
            waited = System.nanoTime() - begin;
            then.run();
        });
    }

    /** Why one search cannot find the hits of the query and these documents, and no others, or null. */
    private String reasonNotToUnite(Nearest found) {
        boolean findsMore = found.isByShard() && plan.shards > 1;
        int hitsOfQuery = Math.max(plan.depth, plan.from + plan.size);
        return found.reason() != null ? found.reason()
            : findsMore ? "aggregations"
            : fits(hitsOfQuery + found.size()) == false ? "window"
            : null;
    }

    /** Whether a search may have so many hits. */
    private boolean fits(int size) {
        return size <= plan.window;
    }

    /** Nanoseconds that the search for candidates has waited. */
    long waited() {
        return waited;
    }

    /** Nanoseconds since the request phase. */
    long took() {
        return System.nanoTime() - begin;
    }

    /**
     * The documents for the search that was sent. If a later processor has changed its query, they are searched again, under
     * its conditions.
     */
    void added(ActionListener<Added> listener) {
        if (reason == null && isChanged()) {
            again(listener);
        } else {
            added.whenComplete(listener::onResponse, listener::onFailure);
        }
    }

    /** Search again, for example because a document has changed. */
    void again(ActionListener<Added> listener) {
        if (reason != null) {
            listener.onResponse(Added.none(reason));
            return;
        }
        if (plan.united != null && isChanged()) { // the search itself has found some of them, under its new conditions
            listener.onResponse(Added.none("changed"));
            return;
        }
        Conditioned sent;
        try {
            String why = refusal(plan.sent.source(), plan);
            SearchSourceBuilder source = plan.sent.source();
            sent = isChanged() ? Conditioned.of(source, SearchPlan.json(source.query()), plan.asker.config.words()) : planned;
            if (why != null) {
                listener.onResponse(Added.none(why));
                return;
            }
        } catch (Conditions.UnknownException e) {
            listener.onResponse(Added.none("conditions"));
            return;
        } catch (IOException | RuntimeException e) {
            logger.warn("the conditions of a search cannot be read", e);
            listener.onResponse(Added.none("error"));
            return;
        }
        nearest.whenComplete(found -> search(found, sent, new SearchRequest(plan.sent), listener),
            e -> listener.onResponse(Added.none(Failure.of(e).reason)));
    }

    /** A later processor, or the rewriting of the query, has replaced parts of the search that decide which documents it finds. */
    private boolean isChanged() {
        if (plan.sent == null) {
            return false;
        }
        SearchSourceBuilder source = plan.sent.source();
        boolean isSame;
        try {
            isSame = planned.isOf(source, plan.united, unitedBytes);
        } catch (IOException | RuntimeException e) {
            isSame = false;
        }
        return isSame == false || refusal(source, plan) != null || Arrays.equals(plan.sent.indices(), plan.searchedIndices) == false
            || Objects.equals(plan.sent.routing(), plan.searchedRouting) == false;
    }

    private void search(Nearest found, Conditioned query, SearchRequest request, ActionListener<Added> listener) {
        String why = found.reason() != null ? found.reason() : plan.isCancelled() ? "cancelled" : fits(found.size()) ? null : "window";
        if (why != null) {
            listener.onResponse(Added.none(why));
        } else if (plan.indices == 1 && found.hasReserve()) { // several indices can have documents of one id
            new NearestSearch(found, (subset, then) -> searchOnce(subset, query, new SearchRequest(request), then)).begin(listener);
        } else {
            searchOnce(found, query, request, listener);
        }
    }

    private void searchOnce(Nearest found, Conditioned query, SearchRequest request, ActionListener<Added> then) {
        boolean isNamed = scoresAboveZero(query.json) == false;
        ActionListener<Added> listener = wrapPreservingContext(then, plugin.threadContext); // it may search again
        ActionListener<SearchResponse> searched = Reranking.ending(listener,
            response -> listener.onResponse(Added.of(response, found, isNamed)), e -> {
                logger.debug("the documents of rankers cannot be searched", e);
                listener.onResponse(Added.none("search"));
            });
        try {
            request.source(source(found, query, isNamed)).allowPartialSearchResults(false);
            plugin.search(plan, request, searched);
        } catch (RuntimeException e) {
            searched.onFailure(e);
        }
    }

    /** The search for the documents: with the score of the query, 0 if it does not match. */
    private SearchSourceBuilder source(Nearest found, Conditioned query, boolean isNamed) {
        BoolQueryBuilder which = withConditions(found, query);
        if (query.query != null && HYBRID.equals(name(query.query)) == false) { // its scores depend on its other hits
            which.should(isNamed ? QueryBuilders.boolQuery().must(query.query).queryName(Added.MATCHED) : query.query);
        }
        return plan.addedDocuments(which).postFilter(query.postFilter).size(Math.max(found.size(), 1));
    }

    private BoolQueryBuilder withConditions(Nearest found, Conditioned query) {
        BoolQueryBuilder which = QueryBuilders.boolQuery().filter(found.query(query.all, this::read));
        query.conditions.forEach(condition -> which.filter(read(condition)));
        return which;
    }

    private QueryBuilder read(Object query) {
        try (XContentBuilder json = JsonXContent.contentBuilder().value(query);
                XContentParser parser = JsonXContent.jsonXContent.createParser(plugin.xContent, LoggingDeprecationHandler.INSTANCE,
                    BytesReference.bytes(json).streamInput())) {
            return AbstractQueryBuilder.parseInnerQueryBuilder(parser);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Whether all documents that a query matches have a score above 0. */
    private static boolean scoresAboveZero(Object query) {
        if (query instanceof Map<?, ?> map && map.size() == 1) {
            Map.Entry<?, ?> entry = map.entrySet().iterator().next();
            boolean isPositive = POSITIVE.contains(entry.getKey());
            return isPositive && String.valueOf(entry.getValue()).contains("boost=0") == false
                || "bool".equals(entry.getKey()) && entry.getValue() instanceof Map<?, ?> inner && boolIsAboveZero(inner);
        }
        return false;
    }

    private static boolean boolIsAboveZero(Map<?, ?> inner) {
        if (inner.get("boost") instanceof Number boost && boost.doubleValue() <= 0) {
            return false;
        }
        if (inner.get("must") instanceof List<?> must && must.isEmpty() == false) {
            return must.stream().anyMatch(Retrieval::scoresAboveZero);
        }
        return inner.containsKey("filter") == false && inner.get("should") instanceof List<?> should && should.isEmpty() == false
            && should.stream().allMatch(Retrieval::scoresAboveZero);
    }
}
