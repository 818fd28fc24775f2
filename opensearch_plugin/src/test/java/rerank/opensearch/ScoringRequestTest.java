package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.opensearch.action.OriginalIndices;
import org.opensearch.common.document.DocumentField;
import org.opensearch.common.xcontent.XContentHelper;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.common.breaker.NoopCircuitBreaker;
import org.opensearch.core.index.shard.ShardId;
import org.opensearch.index.query.QueryBuilders;
import org.opensearch.search.SearchHit;
import org.opensearch.search.SearchShardTarget;
import org.opensearch.search.builder.SearchSourceBuilder;

class ScoringRequestTest {
    private static final String FEATURE = "rerank_features.text@v1";
    private final SearchPlan plan = SearchPlanTest.plan(
        new SearchSourceBuilder().query(QueryBuilders.matchQuery("body", "words")), Map.of("stack", "bm25"), Map.of());

    {
        plan.depth = 100;
    }

    private static SearchHit hit(String index, String id, float score, Map<String, List<Object>> fields) {
        Map<String, DocumentField> made = new HashMap<>();
        fields.forEach((name, values) -> made.put(name, new DocumentField(name, values)));
        SearchHit hit = new SearchHit(0, id, made, Map.of());
        hit.score(score);
        hit.shard(new SearchShardTarget("node", new ShardId(index, "uuid", 0), null, OriginalIndices.NONE));
        return hit;
    }

    private static String row(int... bytes) {
        byte[] row = new byte[bytes.length];
        for (int i = 0; i < bytes.length; i++) {
            row[i] = (byte) bytes[i];
        }
        return Base64.getEncoder().encodeToString(row);
    }

    private record Body(Map<String, Object> head, ByteBuffer numbers, byte[] rows) {
        static Body of(SearchPlan plan, SearchHit... found) throws IOException {
            plan.candidates(); // sets the fields that are fetched for the service
            ScoringRequest hits = ScoringRequest.of(plan, found, Added.none(null));
            byte[] body = hits.body(plan.queryJson(), 1_000, new NoopCircuitBreaker("memory"));
            hits.strip();
            int length = ByteBuffer.wrap(body).getInt(), begin = 4 + length;
            Map<String, Object> head = XContentHelper.convertToMap(JsonXContent.jsonXContent, body, 4, length, true);
            int numbers = hits.hits().size() * 28;
            return new Body(head, ByteBuffer.wrap(body, begin, numbers).slice(),
                Arrays.copyOfRange(body, begin + numbers, body.length));
        }
    }

    @Test
    void equalIdsAreSent() throws IOException {
        SearchHit[] found = {
            hit("books", "1", 3, Map.of()), hit("songs", "1", 2, Map.of()), hit("songs", "1", 1, Map.of()), hit("books", "2", 1, Map.of())};
        assertEquals(List.of("1", "1", "1", "2"), Body.of(plan, found).head.get("ids"));
    }

    /** The service reads at most 1 MiB of JSON. */
    @Test
    void idsThatDoNotFitAreLeftOutUntilTheServiceRequestsThem() throws IOException {
        plan.depth = 3_000;
        SearchHit[] found = IntStream.range(0, 3_000).mapToObj(i -> hit("books", i + "x".repeat(420), 1, Map.of())).toArray(SearchHit[]::new);
        assertFalse(Body.of(plan, found).head.containsKey("ids"));
        plan.requested = new ScoringResponse.RequestedFields(List.of(), true);
        assertEquals("JSON above 1 MiB", assertThrows(ScoringClient.Failure.class, () -> Body.of(plan, found)).reason);
        assertEquals(2, ((List<?>) Body.of(plan, found[0], found[1]).head.get("ids")).size());
    }

    @Test
    void theFirstCallHasNoFeatures() throws IOException {
        SearchHit[] found = {hit("books", "1", 3, Map.of()), hit("books", "2", 2.5f, Map.of())};
        Body body = Body.of(plan, found);
        assertEquals(List.of("1", "2"), body.head.get("ids"));
        assertEquals(List.of(3.0, 2.5), List.of(body.numbers.getDouble(), body.numbers.getDouble()));
        assertEquals(List.of("books"), body.head.get("index"));
        assertEquals(Map.of("stack", "bm25"), body.head.get("rerank"));
        assertTrue(body.head.get("query").toString().contains("words"));
        assertEquals(List.of(), body.head.get("features"));
        assertEquals(0, body.rows.length);
    }

    @Test
    void featuresAreSentAsRows() throws IOException {
        plan.requested = new ScoringResponse.RequestedFields(List.of("text@v1"), true);
        SearchHit[] found = {
            hit("books", "1", 3, Map.of(FEATURE, List.of(row(1, 2, 3)))), hit("books", "2", 2, Map.of()),
            hit("books", "3", 1, Map.of(FEATURE, List.of(row(4, 5)))), hit("books", "4", 1, Map.of(FEATURE, List.of(row(7, 8, 9))))};
        Body body = Body.of(plan, found);
        assertEquals(List.of("text@v1"), body.head.get("features"));
        assertArrayEquals(new byte[] {0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 7, 8, 9}, body.rows);
        assertNull(found[0].field(FEATURE), "the user has not requested it");
    }

    @Test
    void scoresOfNamedClausesAreSentWithoutThoseThatTheQueryLacks() throws IOException {
        plan.user.query(QueryBuilders.boolQuery().should(QueryBuilders.matchQuery("body", "words").queryName("lexical")));
        plan.requested = new ScoringResponse.RequestedFields(List.of("leg:lexical", "leg:other", "leg:0"), true);
        SearchHit[] found = {hit("books", "1", 3, Map.of()), hit("books", "2", 2, Map.of())};
        found[1].matchedQueriesWithScores(Map.of("lexical", 0.1f));
        Body body = Body.of(plan, found);
        assertEquals(List.of("leg:lexical"), body.head.get("features"));
        ByteBuffer rows = ByteBuffer.wrap(body.rows);
        assertEquals(List.of(0, 8, 0.1), List.of(rows.getInt(), rows.getInt(), rows.getDouble()));
        assertEquals(Map.of("lexical", 0.1f), found[1].getMatchedQueriesAndScores());
        assertTrue(plan.candidates().includeNamedQueriesScore());
    }

    @Test
    void aDamagedRowIsMissingAndFieldsAreRemoved() throws IOException {
        plan.requested = new ScoringResponse.RequestedFields(List.of("text@v1"), true);
        SearchHit[] found = {
            hit("books", "1", 3, Map.of(FEATURE, List.of("no Base64!"))), hit("books", "2", 2, Map.of(FEATURE, List.of(row(1, 2, 3))))};
        Body body = Body.of(plan, found);
        assertArrayEquals(new byte[] {0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3}, body.rows);
        for (SearchHit hit : found) {
            assertNull(hit.field(FEATURE), "the user has not requested it");
        }
    }

    @Test
    void hitsAfterTheDepthAreNotSent() throws IOException {
        plan.depth = 2;
        SearchHit[] found = {hit("books", "a", 3, Map.of()), hit("books", "b", 2, Map.of()), hit("books", "c", 1, Map.of())};
        ScoringRequest hits = ScoringRequest.of(plan, found, Added.none(null));
        assertEquals(Arrays.asList(found).subList(0, 2), hits.hits());
        assertSame(found[2], hits.at(2));
    }

    @Test
    void placesOfSeveralIndices() throws IOException {
        plan.requested = new ScoringResponse.RequestedFields(List.of(), false);
        plan.idsOnly = true;
        SearchHit[] found = {hit("books", null, 3, Map.of()), hit("songs", null, 2, Map.of())};
        found[1].shard(new SearchShardTarget("node", new ShardId("songs", "other", 3), null, OriginalIndices.NONE));
        found[1].setSeqNo(7);
        found[1].setPrimaryTerm(2);
        found[0].setSeqNo(5);
        found[0].setPrimaryTerm(1);
        Body body = Body.of(plan, found);
        assertFalse(body.head.containsKey("ids"));
        assertEquals(Map.of("uuids", List.of("uuid", "other"), "index", List.of(0, 1)), body.head.get("places"));
        assertEquals(List.of(0, 3), List.of(body.numbers.getInt(16), body.numbers.getInt(20)));
    }

    @Test
    void scoresAndPlacesAreBytes() throws IOException {
        plan.requested = new ScoringResponse.RequestedFields(List.of("text@v1"), true);
        SearchHit[] found = {hit("books", "a", 3.3f, Map.of(FEATURE, List.of(row(1, 2, 3)))), hit("books", "b", 0.1f, Map.of())};
        for (SearchHit hit : found) {
            hit.setSeqNo(hit == found[0] ? 5 : 1L << 40);
            hit.setPrimaryTerm(2);
        }
        Body body = Body.of(plan, found);
        assertEquals(List.of("a", "b"), body.head.get("ids"));
        assertEquals(2, body.head.get("hits"));
        assertEquals(Map.of("uuids", List.of("uuid")), body.head.get("places"));
        ByteBuffer numbers = body.numbers;
        assertEquals(3.3, numbers.getDouble(), "the same value as in JSON");
        assertEquals(0.1, numbers.getDouble());
        assertEquals(List.of(0, 0), List.of(numbers.getInt(), numbers.getInt()));
        assertEquals(List.of(5L, 1L << 40, 2L, 2L),
            List.of(numbers.getLong(), numbers.getLong(), numbers.getLong(), numbers.getLong()));
        assertArrayEquals(new byte[] {0, 0, 0, 3, 0, 0, 0, 0, 1, 2, 3}, body.rows);
    }
}
