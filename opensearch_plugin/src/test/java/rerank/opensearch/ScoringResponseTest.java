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
    private static final List<String> SENT = List.of("a", "b", "c");

    private static ScoringResponse read(String json) {
        return ScoringResponse.read(json.getBytes(StandardCharsets.UTF_8), SENT, null);
    }

    @Test
    void hitsAreBestFirstAndEqualOnesAsAnswered() {
        ScoringResponse answer = read("{\"ids\": [\"c\", \"b\", \"a\"], \"scores\": [1, 2.5, 1], \"signals\": [{}, {\"bm25\": 2}, null]}");
        assertNull(answer.passed());
        assertEquals(List.of(1, 2, 0), answer.hits().stream().map(ScoringResponse.Hit::position).toList());
        assertEquals(2.5f, answer.hits().get(0).score());
        assertEquals("{bm25=2}", answer.hits().get(0).signals().toString());
        assertNull(answer.requested());
    }

    @Test
    void theExplanationIsReturned() {
        String hits = "{\"ids\": [\"c\", \"b\", \"a\"], \"scores\": [1, 2, 3]";
        assertEquals(Map.of("stack", "bm25*1.00", "case", "none"),
            read(hits + ", \"weights\": {\"stack\": \"bm25*1.00\", \"case\": \"none\"}}").explained().get("weights"));
        assertEquals(Map.of(), read(hits + "}").explained());
        assertEquals(Map.of(), read(hits + ", \"weights\": [1], \"unknown_categories\": {}}").explained());
        assertEquals(List.of("x"), read(hits + ", \"unknown_categories\": [\"x\"]}").explained().get("unknown_categories"));
        assertEquals(Map.of("case", "none"), numbers("{\"weights\": {\"case\": \"none\"}}", 2, 0, 1, 2f, 1f, 0f).explained().get("weights"));
    }

    @Test
    void whyASearchIsRefused() {
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
        assertEquals("empty", read("{\"passed\": \"empty\"}").passed());
        assertEquals(64, read("{\"passed\": \"" + "x".repeat(1000) + "\"}").passed().length());
    }

    @ParameterizedTest
    @ValueSource(strings = {
        "{\"ids\": [\"a\", \"b\"], \"scores\": [1, 2, 3]}",
        "{\"ids\": [\"a\", \"b\", \"b\"], \"scores\": [1, 2, 3]}",
        "{\"ids\": [\"a\", \"b\", \"x\"], \"scores\": [1, 2, 3]}",
        "{\"ids\": [\"a\", \"b\", 3], \"scores\": [1, 2, 3]}",
        "{\"ids\": [\"a\", \"b\", \"c\"], \"scores\": [1, 2]}",
        "{\"ids\": [\"a\", \"b\", \"c\"], \"scores\": [1, 2, \"3\"]}",
        "{\"ids\": [\"a\", \"b\", \"c\"], \"scores\": [1, 2, 1e300]}",
        "{\"ids\": [\"a\", \"b\", \"c\"], \"scores\": [1, 2, 3], \"signals\": []}",
        "{\"ids\": \"abc\", \"scores\": [1, 2, 3]}",
        "{\"passed\": 3}",
        "{}", "[]", "\"text\"", "",
    })
    void whatDoesNotFitIsABadAnswer(String json) {
        assertEquals("bad_answer", assertThrows(Failure.class, () -> read(json)).reason);
    }

    @ParameterizedTest
    @ValueSource(strings = {"<html>", "{\"ids\": [", "{\"ids\": }"})
    void whatCannotBeReadIsNoJson(String text) {
        assertEquals("not_json", assertThrows(Failure.class, () -> read(text)).reason);
    }

    private static ScoringResponse numbers(String json, Object... numbers) {
        byte[] head = json.getBytes(StandardCharsets.UTF_8);
        ByteBuffer bytes = ByteBuffer.allocate(4 + head.length + 4 * numbers.length).putInt(1 << 24 | head.length).put(head);
        for (Object number : numbers) {
            if (number instanceof Integer place) {
                bytes.putInt(place);
            } else {
                bytes.putFloat((Float) number);
            }
        }
        return ScoringResponse.read(bytes.array(), SENT, null);
    }

    @Test
    void placesAndScoresMayBeBytes() {
        ScoringResponse answer = numbers("{\"signals\": [{\"bm25\": 2}, {}, {}]}", 2, 0, 1, 2.5f, 1f, 1f);
        assertEquals(List.of(2, 0, 1), answer.hits().stream().map(ScoringResponse.Hit::position).toList());
        assertEquals(List.of(2.5f, 1f, 1f), answer.hits().stream().map(ScoringResponse.Hit::score).toList());
        assertEquals("{bm25=2}", answer.hits().get(0).signals().toString());
        assertEquals("empty", numbers("{\"passed\": \"empty\"}").passed());
    }

    @Test
    void bytesThatDoNotFitAreABadAnswer() {
        Object[][] wrong = {{}, {0, 1, 2, 3f, 2f}, {0, 1, 2, 3f, 2f, 1f, 0f}, {0, 1, 1, 3f, 2f, 1f}, {0, 1, 3, 3f, 2f, 1f},
            {0, -1, 2, 3f, 2f, 1f}, {0, 1, 2, 3f, 2f, Float.NaN}, {0, 1, 2, Float.POSITIVE_INFINITY, 2f, 1f}};
        for (Object[] numbers : wrong) {
            assertEquals("bad_answer", assertThrows(Failure.class, () -> numbers("{}", numbers)).reason);
        }
        byte[] longer = {1, 0, 0, 9, '{', '}'};
        assertEquals("bad_answer", assertThrows(Failure.class, () -> ScoringResponse.read(longer, SENT, null)).reason);
    }

    @Test
    void requestedFieldsAreRead() {
        ScoringResponse.RequestedFields requested = read("{\"passed\": \"x\", \"requested_fields\": {\"features\": [\"text@v1\", \"text@v1\", \"meta@m\"],"
            + " \"category_votes\": 10}}").requested();
        assertEquals(new ScoringResponse.RequestedFields(List.of("text@v1", "meta@m"), 10, false, false, false, false), requested);
        assertEquals(List.of("rerank_features.text@v1", "rerank_features.meta@m", "tags"), requested.fields("tags"));
    }

    @Test
    void theServiceCanRequestNoOtherField() {
        ScoringResponse.RequestedFields requested = read("{\"passed\": \"x\", \"requested_fields\": {\"features\": [], \"id\": \"salary\","
            + " \"categories\": \"salary\", \"category_votes\": 10}}").requested();
        assertEquals(List.of(), requested.fields(null));
    }

    @Test
    void withoutVotesThereAreNoCategories() {
        ScoringResponse.RequestedFields requested = read("{\"passed\": \"x\", \"requested_fields\": {\"features\": [], \"category_votes\": 0}}").requested();
        assertEquals(new ScoringResponse.RequestedFields(List.of(), 0, false, false, false, false), requested);
        assertEquals(List.of(), requested.fields("tags"));
    }

    @ParameterizedTest
    @ValueSource(strings = {
        "{}",
        "{\"features\": [\"*\"], \"category_votes\": 0}",
        "{\"features\": [\"a.b\"], \"category_votes\": 0}",
        "{\"features\": [3], \"category_votes\": 0}",
        "{\"features\": [], \"category_votes\": 101}",
        "{\"features\": [], \"category_votes\": -1}",
    })
    void requestsThatAreRefused(String requested) {
        String json = "{\"passed\": \"x\", \"requested_fields\": " + requested + "}";
        assertEquals("bad_answer", assertThrows(Failure.class, () -> read(json)).reason);
    }

    @Test
    void thirtyTwoFeaturesAreTheMost() {
        String list = "\"f\", ".repeat(32) + "\"f\"";
        String json = "{\"passed\": \"x\", \"requested_fields\": {\"category_votes\": 0, \"features\": [" + list + "]}}";
        assertThrows(Failure.class, () -> read(json));
    }
}
