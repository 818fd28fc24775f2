package rerank.opensearch;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.apache.lucene.search.BooleanClause;
import org.apache.lucene.search.TotalHits;
import org.opensearch.action.search.SearchRequest;
import org.opensearch.action.search.SearchResponse;
import org.opensearch.action.search.SearchResponseSections;
import org.opensearch.cluster.metadata.IndexMetadata;
import org.opensearch.common.regex.Regex;
import org.opensearch.common.settings.Settings;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.common.bytes.BytesReference;
import org.opensearch.core.xcontent.ToXContentObject;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.index.IndexSettings;
import org.opensearch.index.query.BoolQueryBuilder;
import org.opensearch.index.query.QueryBuilder;
import org.opensearch.index.query.QueryBuilderVisitor;
import org.opensearch.index.query.QueryBuilders;
import org.opensearch.search.SearchExtBuilder;
import org.opensearch.search.SearchHits;
import org.opensearch.search.aggregations.InternalAggregations;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.search.fetch.StoredFieldsContext;
import org.opensearch.search.fetch.subphase.FieldAndFormat;
import org.opensearch.search.internal.InternalSearchResponse;
import org.opensearch.search.internal.SearchContext;
import org.opensearch.search.profile.SearchProfileShardResults;
import org.opensearch.search.sort.*;

/**
 * How one search is reranked; the request phase stores it for the response phase. Its JSON is empty: queries may read stored
 * attributes.
 */
final class SearchPlan implements ToXContentObject {
    /** The reason of a search that failed with the fields of the hook. */
    static final String FAILED_SEARCH = "search";
    /** Bytes of a long query: if its call fails, the failure of the service is not counted. */
    static final int LONG_QUERY = 1 << 14;
    /** Queries without words of a user. */
    private static final Set<String> WORDLESS = Set.of("match_all", "match_none", "term", "terms", "ids", "range", "exists",
        "prefix", "wildcard", "regexp", "fuzzy");
    /** Queries that, without a name, change only the score of a hit, like queries without words. */
    private static final Set<String> PLAIN = Set.of("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix",
        "multi_match", "combined_fields", "query_string", "simple_query_string", "bool", "dis_max", "constant_score");
    /** Queries that contain other queries, whose names and inner hits are only in their JSON. */
    private static final Set<String> COMPOUND = Set.of("function_score", "script_score", "boosting", "nested", "has_child",
        "has_parent", "rank_feature", "distance_feature");

    final RerankExt ext;
    final RerankProcessor asker;
    final SearchRequest request;
    final SearchSourceBuilder user; // the search of the user
    SearchRequest sent; // the search that was made, or null
    AttemptFilter.Attempt attempt; // the search of the user that this is a part of
    boolean isRepeated; // if it fails
    volatile boolean isAnswered; // with the user's page, or an error
    final int from, size; // the user's page
    String outcome, reason; // passed or failed, and the reason; null: not known yet
    int depth;
    /** Hits with a smaller probability of relevance are removed; null: none. The search's own value, or the pipeline's. */
    final Double minScore;
    Map<String, Object> explained = Map.of(); // explanation of the service
    String stack;
    boolean isStackAllowed; // by the pipeline, if the search names one
    boolean showsValues;
    /** Of the stack and the names of the indices, which can be long. */
    UUID key;
    int indices; // number of searched indices
    int shards; // their shards
    /** The documents that the rankers of the stack retrieve; null: the pipeline or the search does not add them. */
    Retrieval retrieval;
    /** The query of a search for candidates that also finds these documents, or null. */
    QueryBuilder united;
    int unitedSize; // most of these documents
    /** Most hits of a search of the indices. */
    int window;
    String[] searchedIndices;
    /** The service that both calls of this search ask first: it keeps the vectors of the query. */
    int turn;
    String searchedRouting;
    /** Whether documents were added, which the query may not match. */
    boolean hasAdded;
    /** What was added, or why nothing, for an explanation. */
    Map<String, Object> addedReport = Map.of();
    Groups groups; // of a search with collapse that can be reranked; null: none
    ScoringResponse.RequestedFields requested = ScoringResponse.RequestedFields.NONE;
    Legs legs = new Legs(null, List.of());
    /** Fields that are fetched only for the service. */
    List<String> added = List.of();
    /** Whether candidates have no stored fields, and a second search fetches the documents of the page. */
    boolean idsOnly;
    /** Whether the second search has the query of the user: for highlights, matched queries and inner hits. */
    private boolean byQuery;
    private byte[] queryJson;

    SearchPlan(SearchRequest request, RerankExt ext, RerankProcessor asker) {
        this.request = request;
        this.ext = ext;
        this.asker = asker;
        user = request.source();
        minScore = ext.values.get("min_score") instanceof Number number ? (Double) number.doubleValue() : asker.config.minScore();
        from = user == null ? 0 : Math.max(user.from(), 0);
        size = user == null || user.size() < 0 ? 10 : user.size();
    }

    @Override
    public XContentBuilder toXContent(XContentBuilder json, Params params) throws IOException {
        return json.startObject().endObject();
    }

    void end(String outcome, String reason) {
        this.outcome = outcome;
        this.reason = reason;
    }

    <T> List<T> page(List<T> all) {
        return all.subList(Math.min(from, all.size()), Math.min(from + size, all.size()));
    }

    /** Whether the response tells the outcome: without it, removed hits would be missing in silence. */
    boolean isReported() {
        return ext.is("explain") || minScore != null;
    }

    String reasonToPass() {
        boolean wordless = user == null || ext.text("query") == null
            && (user.query() == null || WORDLESS.contains(user.query().getName()));
        return ext.is("off") ? "off"
            : ext.text("query") != null && ext.text("query").length() > RerankExt.LONGEST_QUERY ? "query_too_long" // in ext.rerank
            : request.scroll() != null ? "scroll"
            : user != null && size == 0 ? "size_0"
            : wordless ? "no_text_query"
            : user.searchAfter() != null ? "search_after"
            : user.collapse() != null && user.collapse().getInnerHits().isEmpty() == false ? "collapse_inner_hits"
            : user.collapse() != null && groups == null || canGroup() == false ? "collapse"
            : user.slice() != null ? "slice"
            : sorted(user.sorts()) ? "sort"
            : user.pointInTimeBuilder() != null && breaksTies() ? "pit" // search_after needs the order of the first stage
            : user.storedFields() != null && user.storedFields().fetchFields() == false ? "no_ids" // _none_
            : null;
    }

    /** Whether the page has only hits of the first stage. Added documents move all pages. */
    boolean isAfterCandidates() {
        boolean canAdd = retrieval != null && retrieval.reason == null;
        return from >= depth && minScore == null && canAdd == false;
    }

    /** Whether documents of rankers are requested: by the pipeline, unless the search does not want them. */
    boolean requestsRetrieval() {
        return asker.config.retrieves() && user != null && Boolean.FALSE.equals(ext.values.get("retrieve")) == false;
    }

    boolean isCancelled() {
        return attempt != null && attempt.isCancelled();
    }

    /** The query as OpenSearch writes it, when it was first needed. */
    byte[] queryJson() throws IOException {
        if (queryJson == null) {
            queryJson = json(user.query());
        }
        return queryJson;
    }

    /** A query as OpenSearch writes it; null: also. */
    static byte[] json(QueryBuilder query) throws IOException {
        if (query == null) {
            return "null".getBytes(StandardCharsets.US_ASCII);
        }
        try (XContentBuilder json = JsonXContent.contentBuilder()) {
            query.toXContent(json, EMPTY_PARAMS);
            return BytesReference.toBytes(BytesReference.bytes(json));
        }
    }

    /** Whether a failure of the call may come from the length of the query. */
    boolean isLongQuery() {
        return queryJson.length > LONG_QUERY || Objects.toString(ext.text("query"), "").length() > LONG_QUERY;
    }

    /** Whether the candidates have the values of the groups. */
    boolean canGroup() {
        return groups == null || idsOnly || groups.isShownOtherwise(user) == false;
    }

    private static boolean sorted(List<SortBuilder<?>> sorts) {
        return sorts != null && sorts.isEmpty() == false
            && (sorts.get(0) instanceof ScoreSortBuilder == false || sorts.get(0).order() != SortOrder.DESC);
    }

    /** Whether the user sorts by the score and other keys. */
    boolean breaksTies() {
        return user.sorts() != null && user.sorts().size() > 1;
    }

    /** Read the settings, within the limits of the indices. */
    void prepare(Config config, List<Settings> indices) {
        window = indices.isEmpty() ? IndexSettings.MAX_RESULT_WINDOW_SETTING.get(Settings.EMPTY) : Integer.MAX_VALUE;
        int mostFields = Integer.MAX_VALUE;
        for (Settings index : indices) {
            window = Math.min(window, IndexSettings.MAX_RESULT_WINDOW_SETTING.get(index));
            shards += IndexMetadata.INDEX_NUMBER_OF_SHARDS_SETTING.get(index);
            mostFields = Math.min(mostFields, IndexSettings.MAX_DOCVALUE_FIELDS_SEARCH_SETTING.get(index));
        }
        depth = Math.min(groups == null ? config.depth() : config.groupedDepth(), window);
        String named = ext.text("stack");
        stack = named == null ? config.stack() : named;
        isStackAllowed = named != null && config.allowsStack(named);
        showsValues = config.rawValues();
        String names = stack + "\n" + String.join(",", request.indices());
        key = UUID.nameUUIDFromBytes(names.getBytes(StandardCharsets.UTF_8));
        this.indices = indices.size(); // 0: indices of other clusters
        requested = indices.isEmpty() ? requested : asker.lastRequested.getOrDefault(key, requested);
        if (user == null) {
            return; // a search without a body
        }
        int own = user.docValueFields() == null ? 0 : user.docValueFields().size();
        List<String> clauses = requested.features().stream().filter(Legs::isLeg).toList(); // their scores are no fields
        if (own + requested.features().size() - clauses.size() > mostFields) {
            requested = requested.withFeatures(clauses);
        }
        idsOnly = requested.ids() == false && config.fetchesPage() && isPlain();
    }

    /** Whether a second search can fetch the hits as in this search. */
    private boolean isPlain() {
        boolean ofShards = request.preference() != null && request.preference().startsWith("_shards:");
        boolean isShownPlainly = user.getDerivedFields() == null && user.getDerivedFieldsObject() == null
            && user.pointInTimeBuilder() == null && Boolean.TRUE.equals(user.explain()) == false && user.profile() == false
            && user.ext().stream().allMatch(ext -> ext.getWriteableName().equals(QueryContext.NAME) || RerankExt.isUbi(ext));
        if (ofShards || isShownPlainly == false) {
            return false;
        }
        Set<String> kinds = new HashSet<>();
        AtomicBoolean isNamed = new AtomicBoolean();
        visit(user.query(), query -> {
            kinds.add(query.getName());
            isNamed.set(isNamed.get() || query.queryName() != null);
        });
        byQuery = user.highlighter() != null || isNamed.get() || kinds.stream().anyMatch(COMPOUND::contains) && hasHiddenParts();
        return kinds.stream().allMatch(kind -> PLAIN.contains(kind) || WORDLESS.contains(kind) || COMPOUND.contains(kind));
    }

    private static void visit(QueryBuilder query, Consumer<QueryBuilder> then) {
        if (query != null) {
            query.visit(new QueryBuilderVisitor() {
                @Override
                public void accept(QueryBuilder part) {
                    then.accept(part);
                }

                @Override
                public QueryBuilderVisitor getChildVisitor(BooleanClause.Occur occur) {
                    return this;
                }
            });
        }
    }

    /** Whether the query has names or inner hits, also where visitors do not come. */
    private boolean hasHiddenParts() {
        try {
            String json = new String(queryJson(), StandardCharsets.UTF_8);
            return json.contains("\"_name\"") || json.contains("\"inner_hits\"");
        } catch (IOException e) {
            return true;
        }
    }

    /** Find the clauses whose scores are sent. Before the first answer of the service, these are all that have names. */
    void nameLegs() {
        legs = new Legs(user.query(), requested.isKnown() ? requested.features() : null);
        requested = requested.withFeatures(requested.isKnown() ? legs.available(requested.features()) : legs.features());
        queryJson = legs.areNamed() ? null : queryJson; // it gets names
    }

    /** The search for the candidates. */
    SearchSourceBuilder candidates() {
        SearchSourceBuilder source = (idsOnly ? withoutFields() : user.shallowCopy()).from(0).size(groups == null ? Math.max(depth, from + size) + unitedSize : depth)
            .seqNoAndPrimaryTerm(true);
        if (breaksTies()) {
            source.trackScores(true);
        }
        List<FieldAndFormat> own = idsOnly ? List.of() : Stream.of(user.docValueFields(), user.fetchFields()).filter(Objects::nonNull)
            .flatMap(List::stream).toList();
        if (idsOnly) {
            source.storedFields(StoredFieldsContext.fromList(List.of("_none_"))).fetchSource(false).version(false).highlighter(null);
        }
        if (legs.areNamed() == false) {
            nameLegs();
        }
        if (sendsLegs()) {
            source.includeNamedQueriesScores(true);
        }
        // Fields that the user requests are neither fetched twice nor removed.
        added = requested.features().stream().filter(name -> Legs.isLeg(name) == false).map(Protocol.FEATURES::concat)
            .filter(field -> own.stream().noneMatch(requestedByUser -> Regex.simpleMatch(requestedByUser.field, field))).toList();
        added.forEach(source::docValueField);
        return groups == null ? source : groups.with(source.collapse(null));
    }

    private boolean sendsLegs() {
        return requested.features().stream().anyMatch(Legs::isLeg);
    }

    /** Remove added fields from the user's search: its shallow copies share its lists. */
    void restore() {
        legs.restore();
        if (user != null && user.docValueFields() != null) {
            user.docValueFields().removeIf(field -> added.contains(field.field));
        }
    }

    /** A copy of the user's search without lists of fields: a builder cannot empty these lists. */
    private SearchSourceBuilder withoutFields() {
        if (user.docValueFields() == null && user.fetchFields() == null && user.scriptFields() == null) {
            return user.shallowCopy();
        }
        SearchSourceBuilder copy = new SearchSourceBuilder().query(user.query()).postFilter(user.postFilter())
            .suggest(user.suggest()).stats(user.stats()).timeout(user.timeout())
            .terminateAfter(user.terminateAfter()).trackScores(user.trackScores());
        if (user.minScore() != null) {
            copy.minScore(user.minScore());
        }
        if (user.trackTotalHitsUpTo() != null) {
            copy.trackTotalHitsUpTo(user.trackTotalHitsUpTo());
        }
        each(user.sorts(), copy::sort);
        each(user.rescores(), copy::addRescorer);
        each(user.indexBoosts(), boost -> copy.indexBoost(boost.getIndex(), boost.getBoost()));
        if (user.aggregations() != null) {
            user.aggregations().getAggregatorFactories().forEach(copy::aggregation);
            user.aggregations().getPipelineAggregatorFactories().forEach(copy::aggregation);
        }
        return copy;
    }

    private static <T> void each(Collection<? extends T> list, Consumer<T> then) {
        if (list != null) {
            list.forEach(then);
        }
    }

    /** The same search with the query that was sent: later processors may have added filters. */
    SearchSourceBuilder asSent(SearchSourceBuilder source) {
        return source.query(sent.source().query()).postFilter(sent.source().postFilter());
    }

    /** The number of hits of the query and of added documents that it does not match. counted: of the search; null: not requested. */
    TotalHits total(TotalHits counted, int unmatched) {
        if (counted == null || united != null || unmatched == 0 || counted.relation() != TotalHits.Relation.EQUAL_TO) {
            return counted;
        }
        int limit = user.trackTotalHitsUpTo() == null ? SearchContext.DEFAULT_TRACK_TOTAL_HITS_UP_TO : user.trackTotalHitsUpTo();
        long sum = counted.value() + unmatched;
        return sum > limit ? new TotalHits(limit, TotalHits.Relation.GREATER_THAN_OR_EQUAL_TO)
            : new TotalHits(sum, TotalHits.Relation.EQUAL_TO);
    }

    /** The search for added documents, with the parts of the candidates that the response needs. */
    SearchSourceBuilder addedDocuments(QueryBuilder which) {
        SearchSourceBuilder source = new SearchSourceBuilder().query(which).trackTotalHits(false).seqNoAndPrimaryTerm(true)
            .timeout(user.timeout());
        if (idsOnly) {
            source.storedFields(StoredFieldsContext.fromList(List.of("_none_"))).fetchSource(false);
        } else {
            source.fetchSource(user.fetchSource()).version(user.version()).storedFields(user.storedFields())
                .highlighter(user.highlighter()).explain(user.explain()).includeNamedQueriesScores(user.includeNamedQueriesScore());
            each(user.docValueFields(), field -> source.docValueField(field.field, field.format));
            each(user.fetchFields(), field -> source.fetchField(field.field, field.format));
            each(user.scriptFields(), field -> source.scriptField(field.fieldName(), field.script(), field.ignoreFailure()));
        }
        if (breaksTies()) {
            each(user.sorts(), source::sort);
            source.trackScores(true);
        }
        if (sendsLegs()) {
            source.includeNamedQueriesScores(true);
        }
        each(user.indexBoosts(), boost -> source.indexBoost(boost.getIndex(), boost.getBoost()));
        List<FieldAndFormat> own = source.docValueFields() == null ? List.of() : source.docValueFields();
        added.stream().filter(field -> own.stream().noneMatch(requestedByUser -> requestedByUser.field.equals(field))).toList()
            .forEach(source::docValueField);
        return source;
    }

    /** The search for the documents of the page, with the fields that the user requested. */
    SearchSourceBuilder documents(QueryBuilder which) {
        SearchSourceBuilder source = new SearchSourceBuilder().query(which).trackTotalHits(false).fetchSource(user.fetchSource())
            .version(user.version()).seqNoAndPrimaryTerm(true).storedFields(user.storedFields());
        each(user.docValueFields(), field -> source.docValueField(field.field, field.format));
        each(user.fetchFields(), field -> source.fetchField(field.field, field.format));
        each(user.scriptFields(), field -> source.scriptField(field.fieldName(), field.script(), field.ignoreFailure()));
        if (byQuery) {
            BoolQueryBuilder both = QueryBuilders.boolQuery().filter(which);
            source.query(user.query() == null ? which : hasAdded ? both.should(user.query()) : both.must(user.query()))
                .highlighter(user.highlighter()).includeNamedQueriesScores(user.includeNamedQueriesScore());
        }
        return groups == null ? source : groups.with(source);
    }

    /** The response to a search with other hits. start: of the response phase, in nanoseconds. */
    SearchResponse answer(SearchResponse response, SearchHits hits, long start) {
        long nanos = System.nanoTime() - start;
        SearchResponseSections old = response.getInternalResponse();
        List<SearchExtBuilder> ext = new ArrayList<>(old.getSearchExtBuilders());
        if (isReported()) {
            ext.add(new RerankExt(report(nanos)));
        }
        InternalSearchResponse sections = new InternalSearchResponse(hits, (InternalAggregations) old.aggregations(), old.suggest(),
            old.profile().isEmpty() ? null : new SearchProfileShardResults(old.profile()), old.timedOut(), old.terminatedEarly(),
            old.getNumReducePhases(), ext, old.getProcessorResult());
        return new SearchResponse(sections, response.getScrollId(), response.getTotalShards(), response.getSuccessfulShards(),
            response.getSkippedShards(), response.getTook().millis() + TimeUnit.NANOSECONDS.toMillis(nanos), response.getPhaseTook(),
            response.getShardFailures(), response.getClusters(), response.pointInTimeId());
    }

    private Map<String, Object> report(long nanos) {
        Map<String, Object> report = new TreeMap<>(explained);
        report.putAll(Map.of("outcome", outcome, "took_ms", nanos / 1e6));
        if (reason != null) {
            report.put("reason", reason);
        }
        if (addedReport.isEmpty() == false) {
            report.put("added", addedReport);
        }
        return report;
    }

    /** The part of the user's page after the groups of the candidates, by the groups of OpenSearch, which are the same. */
    SearchSourceBuilder pageAfter(int groupCount) {
        restore();
        int begin = Math.max(from, groupCount);
        return asSent(user.shallowCopy()).from(begin).size(from + size - begin).trackTotalHits(false);
    }
}
