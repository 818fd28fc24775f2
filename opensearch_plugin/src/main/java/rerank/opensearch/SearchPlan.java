package rerank.opensearch;

import java.io.IOException;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import java.util.function.Predicate;
import java.util.stream.Stream;
import org.apache.lucene.search.BooleanClause;
import org.apache.lucene.util.BytesRef;
import org.apache.lucene.util.StringHelper;
import org.opensearch.action.search.SearchRequest;
import org.opensearch.common.regex.Regex;
import org.opensearch.common.settings.Settings;
import org.opensearch.core.xcontent.ToXContentObject;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.index.IndexSettings;
import org.opensearch.index.query.QueryBuilder;
import org.opensearch.index.query.QueryBuilderVisitor;
import org.opensearch.index.query.QueryBuilders;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.search.fetch.StoredFieldsContext;
import org.opensearch.search.fetch.subphase.FieldAndFormat;
import org.opensearch.search.sort.*;

/**
 * How one search is reranked: what the request phase leaves for the response phase. As JSON it is empty: queries may write all that is
 * left there.
 */
final class SearchPlan implements ToXContentObject {
    /** Queries without a user's words. What other queries contain is for the service to find out. */
    private static final Set<String> WORDLESS = Set.of("match_all", "match_none", "term", "terms", "ids", "range", "exists",
        "prefix", "wildcard", "regexp", "fuzzy");
    /** Beside them, queries that show in a hit by its score alone, unless they have a name. */
    private static final Set<String> PLAIN = Set.of("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix",
        "multi_match", "combined_fields", "query_string", "simple_query_string", "bool", "dis_max", "constant_score");
    /** Around others; they may show in a hit, by names or inner hits, when the query is asked for it again. */
    private static final Set<String> AROUND = Set.of("function_score", "script_score", "boosting", "nested", "has_child",
        "has_parent", "rank_feature", "distance_feature");

    final RerankExt ext;
    final RerankProcessor asker;
    final SearchRequest request;
    final SearchSourceBuilder user; // as the search came
    SearchRequest sent; // as it was made, when it has been
    boolean attempted; // whether it is made once more where it fails
    final int from, size; // the user's page
    String outcome, reason; // passed or failed, and why, where nothing is left to do
    String error; // what has failed, in words
    int depth, timeout;
    int moved = -1; // of the first ten, in a shadow
    Map<String, Object> explained = Map.of(); // by the service
    String stack, key, id, categories;
    ScoringResponse.RequestedFields requested = ScoringResponse.RequestedFields.NONE;
    /** Fields that are fetched for the service, and are no business of the user's. */
    List<String> added = List.of();
    /** Whether the candidates come without stored fields, and the page's documents are fetched when it is known. */
    boolean idsOnly;
    /** Whether they are fetched by the user's query: they show more of it than their score. */
    private boolean byQuery;

    SearchPlan(SearchRequest request, RerankExt ext, RerankProcessor asker) {
        this.request = request;
        this.ext = ext;
        this.asker = asker;
        user = request.source();
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

    /** Whether this search is among the share that is reranked: always the same searches of the same client. */
    static boolean isShared(int share, String key) {
        if (share == 100 || key == null) {
            return share == 100;
        }
        BytesRef bytes = new BytesRef(key);
        return Math.floorMod(StringHelper.murmurhash3_x86_32(bytes, 0), 100) < share;
    }

    String reasonToPass() {
        boolean wordless = user == null || ext.text("query") == null
            && (user.query() == null || WORDLESS.contains(user.query().getName()));
        return ext.is("off") ? "off"
            : request.scroll() != null ? "scroll"
            : user != null && size == 0 ? "size_0"
            : wordless ? "no_text_query"
            : user.searchAfter() != null ? "search_after"
            : user.collapse() != null ? "collapse"
            : user.slice() != null ? "slice"
            : sorted(user.sorts()) ? "sort"
            : user.storedFields() != null && user.storedFields().fetchFields() == false ? "no_ids" // _none_
            : from >= depth ? "window" // the first stage goes on where the candidates end
            : null;
    }

    private static boolean sorted(List<SortBuilder<?>> sorts) {
        return sorts != null && sorts.isEmpty() == false
            && (sorts.get(0) instanceof ScoreSortBuilder == false || sorts.get(0).order() != SortOrder.DESC);
    }

    /** Whether the user sorts by more than the score. */
    boolean breaksTies() {
        return user.sorts() != null && user.sorts().size() > 1;
    }

    /** Whether hits come without an id. */
    boolean withoutIds() {
        return idsOnly && id == null;
    }

    /**
     * Read what the settings say; beyond the limits of an index the search would become an error. unreadable: fields
     * that some index has in another way than they can be read.
     */
    void prepare(Config config, List<Settings> indices, Predicate<String> unreadable) {
        id = config.id() == null || unreadable.test(config.id()) ? null : config.id();
        categories = config.categories() == null || unreadable.test(config.categories()) ? null : config.categories();
        depth = config.depth();
        timeout = Math.max(config.timeout(), 1);
        int mostFields = Integer.MAX_VALUE;
        for (Settings index : indices) {
            depth = Math.min(depth, IndexSettings.MAX_RESULT_WINDOW_SETTING.get(index));
            mostFields = Math.min(mostFields, IndexSettings.MAX_DOCVALUE_FIELDS_SEARCH_SETTING.get(index));
        }
        stack = ext.text("stack") == null ? config.stack() : ext.text("stack");
        key = stack + "\n" + String.join(",", request.indices());
        requested = indices.isEmpty() ? ScoringResponse.RequestedFields.NONE : asker.lastRequested(key).without(unreadable); // none: elsewhere
        if (user == null) {
            return; // a search without a body
        }
        int own = user.docValueFields() == null ? 0 : user.docValueFields().size();
        if (own + requested.fields(categories).size() + 1 > mostFields) {
            requested = ScoringResponse.RequestedFields.NONE;
        }
        if (requested.withoutIds()) {
            id = null;
        }
        idsOnly = (id != null || requested.withoutIds()) && config.fetchesPage() && indices.isEmpty() == false && isPlain();
    }

    /** Whether hits can be fetched again as they are in this search, but for their scores. */
    private boolean isPlain() {
        byQuery = user.highlighter() != null;
        AtomicBoolean plain = new AtomicBoolean(
            user.getDerivedFields() == null && user.getDerivedFieldsObject() == null
                && user.ext().isEmpty() && Boolean.TRUE.equals(user.explain()) == false && user.profile() == false);
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
        SearchSourceBuilder source = (idsOnly ? withoutFields() : user.shallowCopy()).from(0).size(Math.max(depth, from + size));
        if (breaksTies()) {
            source.trackScores(true);
        }
        List<FieldAndFormat> own = idsOnly ? List.of() : Stream.of(user.docValueFields(), user.fetchFields()).filter(Objects::nonNull)
            .flatMap(List::stream).toList();
        if (idsOnly) {
            source.storedFields(StoredFieldsContext.fromList(List.of("_none_"))).fetchSource(false).version(false).highlighter(null);
            if (id != null) {
                source.docValueField(id);
            }
        }
        if (idsOnly || requested.places()) {
            source.seqNoAndPrimaryTerm(true);
        }
        if (requested.clauses()) {
            source.includeNamedQueriesScores(true); // nothing where no clause has a name
        }
        // What the user asks for himself must be neither fetched twice nor removed.
        added = requested.fields(categories).stream()
            .filter(field -> own.stream().noneMatch(asked -> Regex.simpleMatch(asked.field, field))).toList();
        added.forEach(source::docValueField);
        return source;
    }

    /** A copy of the user's search without lists of fields: a builder can add to these lists and not empty them. */
    private SearchSourceBuilder withoutFields() {
        if (user.docValueFields() == null && user.fetchFields() == null && user.scriptFields() == null) {
            return user.shallowCopy();
        }
        SearchSourceBuilder copy = new SearchSourceBuilder().query(user.query()).postFilter(user.postFilter())
            .pointInTimeBuilder(user.pointInTimeBuilder()).suggest(user.suggest()).stats(user.stats()).timeout(user.timeout())
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

    /** A search for what was really looked for: processors behind ours may have added filters. */
    SearchSourceBuilder asSent(SearchSourceBuilder source) {
        return source.query(sent.source().query()).postFilter(sent.source().postFilter());
    }

    /** The search for documents of the page: what the user's search shows of each hit, and nothing beside the hits. */
    SearchSourceBuilder documents(QueryBuilder which) {
        SearchSourceBuilder source = new SearchSourceBuilder().query(which).trackTotalHits(false).fetchSource(user.fetchSource())
            .version(user.version()).seqNoAndPrimaryTerm(true).storedFields(user.storedFields())
            .pointInTimeBuilder(user.pointInTimeBuilder());
        each(user.docValueFields(), field -> source.docValueField(field.field, field.format));
        each(user.fetchFields(), field -> source.fetchField(field.field, field.format));
        each(user.scriptFields(), field -> source.scriptField(field.fieldName(), field.script(), field.ignoreFailure()));
        if (byQuery) {
            source.query(user.query() == null ? which : QueryBuilders.boolQuery().must(user.query()).filter(which))
                .highlighter(user.highlighter()).includeNamedQueriesScores(user.includeNamedQueriesScore());
        }
        return source;
    }
}
