package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import rerank.opensearch.ScoringClient.Failure;

class ScoringResponseTest {
    /** An answer for three hits. numbers: positions and scores. */
    private static ScoringResponse read(boolean byPosition, boolean removes, String json, Object... numbers) {
        byte[] head = json.getBytes(StandardCharsets.UTF_8);
        ByteBuffer bytes = ByteBuffer.allocate(4 + head.length + 4 * numbers.length).putInt(head.length).put(head);
        for (Object number : numbers) {
            if (number instanceof Integer place) {
                bytes.putInt(place);
            } else {
                bytes.putFloat((Float) number);
            }
        }
        return ScoringResponse.read(bytes.array(), 3, byPosition, removes);
    }

    private static ScoringResponse read(String json, Object... numbers) {
        return read(false, false, json, numbers);
    }

    @Test
    void hitsAreSortedAndTiesKeepTheOrderOfTheAnswer() {
        ScoringResponse answer = read("{\"signals\": [{}, {\"bm25\": 2}, null]}", 2, 1, 0, 1f, 2.5f, 1f);
        assertNull(answer.reason());
        assertEquals(List.of(1, 2, 0), answer.hits().stream().map(ScoringResponse.Hit::position).toList());
        assertEquals(2.5f, answer.hits().get(0).score());
        assertEquals("{bm25=2}", answer.hits().get(0).signals().toString());
        assertNull(answer.requested());
        ScoringResponse sorted = read(true, false, "{}", 2, 1, 0, 1f, 2.5f, 1f);
        assertEquals(List.of(1, 0, 2), sorted.hits().stream().map(ScoringResponse.Hit::position).toList());
    }

    @Test
    void theExplanationIsReturned() {
        assertEquals(Map.of("weights", Map.of("case", "none"), "unknown_categories", List.of("x")),
            explained("{\"weights\": {\"case\": \"none\"}, \"unknown_categories\": [\"x\"], \"other\": 1}"));
        assertEquals(Map.of(), explained("{\"weights\": [1], \"unknown_categories\": {}}"));
    }

    private static Map<String, Object> explained(String json) {
        return read(json, 2, 0, 1, 2f, 1f, 0f).explained();
    }

    @Test
    void hitsOfASmallProbabilityAreRemoved() {
        ScoringResponse answer = read(false, true, "{\"removed\": 1, \"relevance\": [0.9, 0.4]}", 2, 0, 5f, 3f);
        assertEquals(List.of(2, 0), answer.hits().stream().map(ScoringResponse.Hit::position).toList());
        assertEquals(List.of(0.9, 0.4), answer.hits().stream().map(ScoringResponse.Hit::relevance).toList());
        assertEquals(Map.of("removed", 1), answer.explained());
        assertEquals(List.of(), read(false, true, "{\"removed\": 3}").hits());
        assertEquals(3, read(false, true, "{\"removed\": 0}", 0, 1, 2, 3f, 2f, 1f).hits().size());
    }

    @Test
    void removedHitsMustBeCounted() {
        for (String json : List.of("{\"removed\": 0}", "{\"removed\": 4}", "{\"removed\": 1, \"relevance\": [1]}")) {
            assertEquals("bad_answer", assertThrows(Failure.class, () -> read(false, true, json, 2, 0, 5f, 3f)).reason);
        }
        assertEquals("bad_answer", assertThrows(Failure.class, () -> read("{\"removed\": 1}", 2, 0, 5f, 3f)).reason, "not requested");
        ScoringResponse older = read(false, true, "{}", 0, 1, 2, 3f, 2f, 1f);
        assertEquals("the service has no min_score", older.reason());
    }

    @Test
    void theReasonOfARefusalIsRead() {
        assertEquals(": no such stack", refusal(422, "{\"error\": \"no such stack\"}"));
        assertEquals(502, refusal(400, "{\"error\": \"" + "x".repeat(1000) + "\"}").length());
        for (String body : List.of("", "<html>", "[]", "{}", "{\"error\": 3}", "{\"error\"")) {
            assertEquals("", refusal(422, body));
        }
        assertEquals("", refusal(502, "{\"error\": \"a proxy's\"}"));
    }

    private static String refusal(int status, String body) {
        return ScoringResponse.refusal(status, body.getBytes(StandardCharsets.UTF_8));
    }

    @Test
    void aReasonToPassIsShort() {
        assertEquals("empty", read("{\"passed\": \"empty\"}").reason());
        assertEquals(64, read("{\"passed\": \"" + "x".repeat(1000) + "\"}").reason().length());
    }

    @ParameterizedTest
    @ValueSource(strings = {"{\"passed\": 3}", "{}", "[]", "\"text\"", "", "<html>", "{\"ids\": [", "{\"ids\": }"})
    void whatDoesNotFitIsABadAnswer(String json) {
        assertEquals("bad_answer", assertThrows(Failure.class, () -> read(json)).reason);
    }

    @Test
    void invalidNumbersAreABadAnswer() {
        Object[][] wrong = {{}, {0, 1, 2, 3f, 2f}, {0, 1, 2, 3f, 2f, 1f, 0f}, {0, 1, 1, 3f, 2f, 1f}, {0, 1, 3, 3f, 2f, 1f},
            {0, -1, 2, 3f, 2f, 1f}, {0, 1, 2, 3f, 2f, Float.NaN}, {0, 1, 2, Float.POSITIVE_INFINITY, 2f, 1f}};
        for (Object[] numbers : wrong) {
            assertEquals("bad_answer", assertThrows(Failure.class, () -> read("{}", numbers)).reason);
        }
        Object[] right = {0, 1, 2, 3f, 2f, 1f};
        assertEquals("bad_answer", assertThrows(Failure.class, () -> read("{\"signals\": []}", right)).reason);
        for (byte[] bytes : new byte[][] {{}, {0, 0, 0}, {0, 0, 0, 9, '{', '}'}, {-1, 0, 0, 2, '{', '}'}, "<html>".getBytes()}) {
            assertEquals("bad_answer", assertThrows(Failure.class, () -> ScoringResponse.read(bytes, 3, false, false)).reason);
        }
    }

    @Test
    void requestedFieldsAreRead() {
        ScoringResponse.RequestedFields requested = read("{\"passed\": \"x\", \"requested_fields\": {\"features\": [\"text@v1\", \"text@v1\", \"meta@m\"],"
            + " \"ids\": true}}").requested();
        assertEquals(new ScoringResponse.RequestedFields(List.of("text@v1", "meta@m"), true), requested);
    }

    @Test
    void theServiceCannotRequestOtherFields() {
        ScoringResponse.RequestedFields requested = read("{\"passed\": \"x\", \"requested_fields\": {\"features\": [], \"id\": \"salary\","
            + " \"categories\": \"salary\"}}").requested();
        assertEquals(List.of(), requested.features());
    }

    @ParameterizedTest
    @ValueSource(strings = {
        "{}",
        "{\"features\": [\"*\"]}",
        "{\"features\": [\"a.b\"]}",
        "{\"features\": [3]}",
    })
    void requestsThatAreRefused(String requested) {
        String json = "{\"passed\": \"x\", \"requested_fields\": " + requested + "}";
        assertEquals("bad_answer", assertThrows(Failure.class, () -> read(json)).reason);
    }

    @Test
    void atMostThirtyTwoFeaturesCanBeRequested() {
        String list = "\"f\", ".repeat(32) + "\"f\"";
        String json = "{\"passed\": \"x\", \"requested_fields\": {\"features\": [" + list + "]}}";
        assertThrows(Failure.class, () -> read(json));
    }
}
