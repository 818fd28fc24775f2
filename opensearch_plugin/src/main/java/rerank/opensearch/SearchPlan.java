package rerank.opensearch;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.apache.lucene.search.BooleanClause;
import org.apache.lucene.search.TotalHits;
import org.opensearch.action.search.SearchRequest;
import org.opensearch.cluster.metadata.IndexMetadata;
import org.opensearch.common.regex.Regex;
import org.opensearch.common.settings.Settings;
import org.opensearch.core.xcontent.ToXContentObject;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.index.IndexSettings;
import org.opensearch.index.query.BoolQueryBuilder;
import org.opensearch.index.query.QueryBuilder;
import org.opensearch.index.query.QueryBuilderVisitor;
import org.opensearch.index.query.QueryBuilders;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.search.fetch.StoredFieldsContext;
import org.opensearch.search.internal.SearchContext;
import org.opensearch.search.fetch.subphase.FieldAndFormat;
import org.opensearch.search.sort.*;

/**
 * How one search is reranked; the request phase stores it for the response phase. Its JSON is empty: queries may read stored
 * attributes.
 */
final class SearchPlan implements ToXContentObject {
    /** The reason of a search that failed with the fields of the hook. */
    static final String FAILED_SEARCH = "search";
    /** Queries without words of a user. */
    private static final Set<String> WORDLESS = Set.of("match_all", "match_none", "term", "terms", "ids", "range", "exists",
        "prefix", "wildcard", "regexp", "fuzzy");
    /** Queries that, without a name, change only the score of a hit, like queries without words. */
    private static final Set<String> PLAIN = Set.of("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix",
        "multi_match", "combined_fields", "query_string", "simple_query_string", "bool", "dis_max", "constant_score");
    /** Queries that contain other queries, which can add names or inner hits to a hit. */
    private static final Set<String> AROUND = Set.of("function_score", "script_score", "boosting", "nested", "has_child",
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
    String[] searchedIndices;
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
    /** Whether the second search has the query of the user: for highlights and matched queries. */
    private boolean byQuery;

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
            : from >= depth && minScore == null && (retrieval == null || retrieval.reason != null) ? "window" // after the candidates
            : null;
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
        depth = groups == null ? config.depth() : config.groupedDepth();
        int mostFields = Integer.MAX_VALUE;
        for (Settings index : indices) {
            depth = Math.min(depth, IndexSettings.MAX_RESULT_WINDOW_SETTING.get(index));
            shards += IndexMetadata.INDEX_NUMBER_OF_SHARDS_SETTING.get(index);
            mostFields = Math.min(mostFields, IndexSettings.MAX_DOCVALUE_FIELDS_SEARCH_SETTING.get(index));
        }
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
        if (own + requested.features().size() > mostFields) {
            requested = new ScoringResponse.RequestedFields(List.of(), requested.ids());
        }
        idsOnly = requested.ids() == false && config.fetchesPage() && isPlain();
    }

    /** Whether a second search can fetch the hits as in this search. */
    private boolean isPlain() {
        byQuery = user.highlighter() != null;
        boolean ofShards = request.preference() != null && request.preference().startsWith("_shards:");
        AtomicBoolean plain = new AtomicBoolean(
            user.getDerivedFields() == null && user.getDerivedFieldsObject() == null && user.pointInTimeBuilder() == null
                && user.ext().stream().allMatch(ext -> ext.getWriteableName().equals(QueryContext.NAME) || RerankExt.isUbi(ext))
                && Boolean.TRUE.equals(user.explain()) == false && user.profile() == false && ofShards == false);
        if (user.query() != null) {
            user.query().visit(new QueryBuilderVisitor() {
                @Override
                public void accept(QueryBuilder query) {
                    String kind = query.getName();
                    byQuery |= query.queryName() != null || AROUND.contains(kind);
                    if ((PLAIN.contains(kind) || WORDLESS.contains(kind) || AROUND.contains(kind)) == false) {
                        plain.set(false);
                    }
                }

                @Override
                public QueryBuilderVisitor getChildVisitor(BooleanClause.Occur occur) {
                    return this;
                }
            });
        }
        return plain.get();
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
        legs = new Legs(user.query(), requested.features());
        if (requested.features().stream().anyMatch(Legs::isLeg)) {
            requested = new ScoringResponse.RequestedFields(legs.available(requested.features()), requested.ids());
            source.includeNamedQueriesScores(true);
        }
        // Fields that the user requests are neither fetched twice nor removed.
        added = requested.features().stream().filter(name -> Legs.isLeg(name) == false).map(Protocol.FEATURES::concat)
            .filter(field -> own.stream().noneMatch(requestedByUser -> Regex.simpleMatch(requestedByUser.field, field))).toList();
        added.forEach(source::docValueField);
        return groups == null ? source : groups.with(source.collapse(null));
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

    /** The part of the user's page after the groups of the candidates, by the groups of OpenSearch, which are the same. */
    SearchSourceBuilder pageAfter(int groupCount) {
        restore();
        int begin = Math.max(from, groupCount);
        return asSent(user.shallowCopy()).from(begin).size(from + size - begin).trackTotalHits(false);
    }
}
