package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.apache.lucene.search.join.ScoreMode;
import org.opensearch.action.search.SearchRequest;
import org.opensearch.common.settings.Settings;
import org.opensearch.common.unit.TimeValue;
import org.opensearch.index.query.InnerHitBuilder;
import org.opensearch.index.query.QueryBuilder;
import org.opensearch.index.query.QueryBuilders;
import org.opensearch.index.query.functionscore.ScoreFunctionBuilders;
import org.opensearch.script.Script;
import org.opensearch.search.aggregations.AggregationBuilders;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.search.collapse.CollapseBuilder;
import org.opensearch.search.fetch.subphase.FieldAndFormat;
import org.opensearch.search.fetch.subphase.highlight.HighlightBuilder;
import org.opensearch.search.slice.SliceBuilder;
import org.opensearch.search.sort.SortOrder;

class SearchPlanTest {
    private static final Settings INDEX = Settings.builder().put("index.max_result_window", 50).build();
    private static final ScoringResponse.RequestedFields REQUESTED = new ScoringResponse.RequestedFields(List.of("text@v1"), false);

    private static SearchSourceBuilder words() {
        return new SearchSourceBuilder().query(QueryBuilders.matchQuery("body", "words"));
    }

    static SearchPlan plan(SearchSourceBuilder source, Map<String, Object> ext, Map<String, Object> config) {
        Config read = ConfigTest.read(config);
        RerankProcessor asker = new RerankProcessor(null, "tag", "", false, read, null);
        SearchRequest request = new SearchRequest("books");
        return new SearchPlan(source == null ? request : request.source(source), new RerankExt(ext), asker);
    }

    private static SearchPlan prepared(SearchSourceBuilder source, Map<String, Object> ext, Settings... indices) {
        SearchPlan plan = plan(source, ext, Map.of());
        plan.prepare(ConfigTest.read(Map.of()), List.of(indices));
        return plan;
    }

    static Stream<Arguments> reasons() {
        UnaryOperator<SearchSourceBuilder> same = source -> source;
        return Stream.of(
            Arguments.of(null, same),
            Arguments.of("size_0", (UnaryOperator<SearchSourceBuilder>) source -> source.size(0)),
            Arguments.of("no_text_query", (UnaryOperator<SearchSourceBuilder>) source -> source.query(null)),
            Arguments.of("no_text_query", query(QueryBuilders.matchAllQuery())),
            Arguments.of("no_text_query", query(QueryBuilders.termQuery("tags", "a"))),
            Arguments.of("search_after", (UnaryOperator<SearchSourceBuilder>) source -> source.searchAfter(new Object[] {1})),
            Arguments.of("collapse", (UnaryOperator<SearchSourceBuilder>) source -> source.collapse(new CollapseBuilder("tags"))),
            Arguments.of("slice", (UnaryOperator<SearchSourceBuilder>) source -> source.slice(new SliceBuilder(0, 2))),
            Arguments.of("sort", (UnaryOperator<SearchSourceBuilder>) source -> source.sort("year")),
            Arguments.of("sort", (UnaryOperator<SearchSourceBuilder>) source -> source.sort("_score", SortOrder.ASC)),
            Arguments.of(null, (UnaryOperator<SearchSourceBuilder>) source -> source.sort("_score", SortOrder.DESC)),
            Arguments.of(null, (UnaryOperator<SearchSourceBuilder>) source -> source.sort("_score").sort("year")),
            Arguments.of("sort", (UnaryOperator<SearchSourceBuilder>) source -> source.sort("year").sort("_score")),
            Arguments.of("no_ids", (UnaryOperator<SearchSourceBuilder>) source -> source.storedField("_none_")),
            Arguments.of(null, (UnaryOperator<SearchSourceBuilder>) source -> source.from(100)));
    }

    @Test
    void theMinimumOfTheSearchReplacesThatOfThePipeline() {
        assertNull(plan(words(), Map.of(), Map.of()).minScore);
        assertEquals(0.3, plan(words(), Map.of(), Map.of("min_score", 0.3)).minScore);
        SearchPlan plan = plan(words(), Map.of("min_score", 0), Map.of("min_score", 0.3));
        assertEquals(0.0, plan.minScore);
        assertTrue(plan.isReported());
    }

    @Test
    void aPageAfterTheCandidatesIsEmptyIfHitsAreRemoved() {
        assertFalse(prepared(words().from(100), Map.of("min_score", 0.5)).isAfterCandidates());
    }

    @Test
    void aPageAfterTheCandidatesStaysAsItIs() {
        assertTrue(prepared(words().from(100), Map.of()).isAfterCandidates());
        assertFalse(prepared(words().from(99), Map.of()).isAfterCandidates());
    }

    @Test
    void aSearchCanRefuseTheDocumentsOfRankers() {
        assertTrue(plan(words(), Map.of(), Map.of("retrieve", true)).requestsRetrieval());
        assertFalse(plan(words(), Map.of("retrieve", false), Map.of("retrieve", true)).requestsRetrieval());
        assertFalse(plan(words(), Map.of("retrieve", true), Map.of()).requestsRetrieval());
    }

    /** The first search of a node must not lack scores that the service needs. */
    @Test
    void theFirstSearchSendsTheScoresOfAllNamedClauses() {
        QueryBuilder query = QueryBuilders.boolQuery().should(QueryBuilders.matchQuery("title", "words").queryName("title"))
            .should(QueryBuilders.matchQuery("body", "words").queryName("no name of a stack"));
        SearchPlan plan = prepared(new SearchSourceBuilder().query(query), Map.of(), Settings.EMPTY);
        SearchSourceBuilder candidates = plan.candidates();
        assertEquals(List.of("leg:title"), plan.requested.features());
        assertTrue(candidates.includeNamedQueriesScore());
        assertTrue(plan.addedDocuments(query).includeNamedQueriesScore(), "added documents have scores of clauses, too");
        assertFalse(prepared(words(), Map.of(), Settings.EMPTY).candidates().includeNamedQueriesScore());
    }

    @Test
    void scoresOfClausesAreNotCountedAsFields() {
        SearchSourceBuilder search = words();
        search.query().queryName("lexical");
        SearchPlan plan = plan(search, Map.of(), Map.of());
        Settings few = Settings.builder().put("index.max_docvalue_fields_search", 1).build();
        for (List<String> expected : List.of(List.of("text@v1", "leg:lexical"), List.of("leg:lexical"))) {
            plan.asker.remember(keyOf(plan), new ScoringResponse.RequestedFields(List.of("text@v1", "leg:lexical"), false));
            plan.prepare(ConfigTest.read(Map.of()), List.of(few));
            assertEquals(expected, plan.requested.features());
            search.docValueField("year");
        }
    }

    private static UUID keyOf(SearchPlan plan) {
        plan.prepare(ConfigTest.read(Map.of()), List.of(Settings.EMPTY));
        return plan.key;
    }

    @Test
    void onlyAPageWithNamesOrInnerHitsIsFetchedByTheQuery() {
        QueryBuilder inner = QueryBuilders.matchQuery("body", "words");
        QueryBuilder which = QueryBuilders.termQuery("_seq_no", 1);
        assertSame(which, pageQuery(QueryBuilders.functionScoreQuery(inner, ScoreFunctionBuilders.fieldValueFactorFunction("n")), which));
        assertSame(which, pageQuery(QueryBuilders.nestedQuery("parts", inner, ScoreMode.Max), which));
        assertNotSame(which, pageQuery(QueryBuilders.nestedQuery("parts", inner, ScoreMode.Max).innerHit(new InnerHitBuilder("a")), which));
        QueryBuilder named = QueryBuilders.matchQuery("body", "words").queryName("named");
        for (QueryBuilder query : List.of(named, QueryBuilders.boolQuery().filter(named), QueryBuilders.boostingQuery(named, inner),
                QueryBuilders.functionScoreQuery(named, ScoreFunctionBuilders.fieldValueFactorFunction("n")))) {
            assertNotSame(which, pageQuery(query, which), query.toString());
        }
    }

    private static QueryBuilder pageQuery(QueryBuilder query, QueryBuilder which) {
        SearchPlan plan = plan(new SearchSourceBuilder().query(query), Map.of(), Map.of());
        plan.asker.remember(keyOf(plan), new ScoringResponse.RequestedFields(List.of(), false));
        plan.prepare(ConfigTest.read(Map.of()), List.of(Settings.EMPTY));
        assertTrue(plan.idsOnly);
        return plan.documents(which).query();
    }

    private static UnaryOperator<SearchSourceBuilder> query(QueryBuilder query) {
        return source -> source.query(query);
    }

    @ParameterizedTest
    @MethodSource("reasons")
    void searchesThatStayAsTheyAre(String reason, UnaryOperator<SearchSourceBuilder> change) {
        assertEquals(reason, prepared(change.apply(words()), Map.of()).reasonToPass());
    }

    @Test
    void theUserCanSwitchItOffOrGiveTheText() {
        assertEquals("off", prepared(words(), Map.of("off", true)).reasonToPass());
        SearchSourceBuilder all = new SearchSourceBuilder().query(QueryBuilders.matchAllQuery());
        assertNull(prepared(all, Map.of("query", "words")).reasonToPass());
    }

    @Test
    void aSearchWithoutABodyPasses() {
        assertEquals("no_text_query", prepared(null, Map.of(), INDEX).reasonToPass());
    }

    @Test
    void aScrollPasses() {
        SearchPlan plan = prepared(words(), Map.of());
        plan.request.scroll(TimeValue.timeValueMinutes(1));
        assertEquals("scroll", plan.reasonToPass());
    }

    @Test
    void theSmallestWindowOfTheIndicesIsTheDepth() {
        assertEquals(100, prepared(words(), Map.of(), Settings.EMPTY).depth);
        assertEquals(50, prepared(words(), Map.of(), Settings.EMPTY, INDEX).depth);
    }

    @Test
    void theStackOfTheUserOverridesThePipeline() {
        SearchPlan plan = plan(words(), Map.of(), Map.of());
        plan.prepare(ConfigTest.read(Map.of("stack", "tfidf")), List.of());
        assertEquals("tfidf", plan.stack);
        assertEquals("tfidf", plan.stack);
        assertEquals("bm25", prepared(words(), Map.of("stack", "bm25")).stack);
    }

    @Test
    void thePageIsCutAtTheLastCandidate() {
        SearchPlan plan = prepared(words().from(2).size(3), Map.of());
        assertEquals(List.of(3, 4, 5), plan.page(List.of(1, 2, 3, 4, 5, 6)));
        assertEquals(List.of(3), plan.page(List.of(1, 2, 3)));
        assertEquals(List.of(), plan.page(List.of(1)));
    }

    @Test
    void candidatesHaveTheFieldsThatTheServiceRequests() {
        SearchPlan plan = prepared(words().from(2).size(3), Map.of());
        plan.requested = REQUESTED;
        SearchSourceBuilder source = plan.candidates();
        assertEquals(List.of(0, 100, true), List.of(source.from(), source.size(), source.seqNoAndPrimaryTerm()));
        assertEquals(List.of("rerank_features.text@v1"), source.docValueFields().stream().map(f -> f.field).toList());
        assertEquals(List.of("rerank_features.text@v1"), plan.added);
    }

    @Test
    void fieldsThatTheUserRequestsAreNotAddedAgain() {
        SearchPlan plan = prepared(words().docValueField("rerank_features.te*"), Map.of());
        plan.requested = new ScoringResponse.RequestedFields(List.of("text@v1", "meta@m"), false);
        SearchSourceBuilder source = plan.candidates();
        assertEquals(List.of("rerank_features.meta@m"), plan.added);
        List<String> fields = source.docValueFields().stream().map((FieldAndFormat f) -> f.field).toList();
        assertEquals(List.of("rerank_features.te*", "rerank_features.meta@m"), fields);
    }

    @Test
    void addedFieldsAreRemovedFromTheSearchOfTheUser() {
        SearchPlan plan = prepared(words().docValueField("year"), Map.of());
        plan.requested = REQUESTED;
        plan.candidates();
        plan.restore();
        assertEquals(List.of("year"), plan.user.docValueFields().stream().map(field -> field.field).toList());
    }

    @Test
    void candidatesOfGroupsAreSingleDocuments() {
        SearchPlan plan = plan(words().from(2).size(3).collapse(new CollapseBuilder("tags")), Map.of(), Map.of());
        plan.groups = new Groups("tags");
        plan.prepare(ConfigTest.read(Map.of()), List.of(Settings.EMPTY));
        assertNull(plan.reasonToPass());
        SearchSourceBuilder candidates = plan.candidates();
        assertNull(candidates.collapse());
        assertEquals(300, candidates.size());
        assertEquals(List.of("tags"), candidates.docValueFields().stream().map(field -> field.field).toList());
        assertNotNull(plan.user.collapse());
    }

    @Test
    void aPageAfterTheCandidatesIsComplete() {
        assertEquals(104, prepared(words().from(99).size(5), Map.of()).candidates().size());
        assertEquals(100, prepared(words().from(90).size(5), Map.of()).candidates().size());
    }

    @Test
    void hitsWithoutIdsHavePlaces() {
        SearchPlan plan = prepared(words().highlighter(new HighlightBuilder().field("body")), Map.of());
        plan.requested = new ScoringResponse.RequestedFields(List.of(), false);
        plan.idsOnly = true;
        SearchSourceBuilder source = plan.candidates();
        assertFalse(source.storedFields().fetchFields() || source.fetchSource().fetchSource());
        assertNull(source.docValueFields());
        assertNull(source.highlighter(), "only the page is highlighted");
        assertNotNull(plan.user.highlighter());
    }

    @Test
    void shownFieldsAreFetchedOnlyForThePage() {
        SearchSourceBuilder search = words().docValueField("year").fetchField("tags", "epoch").storedField("title").minScore(0.5f)
            .scriptField("sum", new Script("1 + 1")).sort("_score").aggregation(AggregationBuilders.terms("tags").field("tags"));
        SearchPlan plan = plan(search, Map.of(), Map.of());
        plan.prepare(ConfigTest.read(Map.of()), List.of(Settings.EMPTY));
        plan.asker.remember(plan.key, new ScoringResponse.RequestedFields(List.of("text@v1"), false));
        plan.prepare(ConfigTest.read(Map.of()), List.of(Settings.EMPTY));
        assertTrue(plan.idsOnly);
        SearchSourceBuilder candidates = plan.candidates();
        assertEquals(List.of("rerank_features.text@v1"), candidates.docValueFields().stream().map(field -> field.field).toList());
        assertEquals(Arrays.asList(null, null), Arrays.asList(candidates.fetchFields(), candidates.scriptFields()));
        assertEquals(List.of(search.query(), search.aggregations(), search.sorts(), 0.5f),
            List.of(candidates.query(), candidates.aggregations(), candidates.sorts(), candidates.minScore()));
        SearchSourceBuilder page = plan.documents(QueryBuilders.idsQuery().addIds("a"));
        assertEquals(List.of(search.docValueFields(), search.fetchFields(), search.scriptFields(), search.storedFields()),
            List.of(page.docValueFields(), page.fetchFields(), page.scriptFields(), page.storedFields()));
        assertEquals(Arrays.asList(null, null, null), Arrays.asList(page.aggregations(), page.sorts(), page.minScore()));
    }
}
