package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.opensearch.common.io.stream.BytesStreamOutput;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.xcontent.DeprecationHandler;
import org.opensearch.core.xcontent.NamedXContentRegistry;
import org.opensearch.core.xcontent.XContentParser;
import org.opensearch.search.builder.SearchSourceBuilder;

class RerankExtTest {
    static RerankExt parse(String json) throws IOException {
        try (XContentParser parser = JsonXContent.jsonXContent.createParser(
                NamedXContentRegistry.EMPTY, DeprecationHandler.THROW_UNSUPPORTED_OPERATION, json)) {
            return RerankExt.parse(parser);
        }
    }

    @Test
    void allOptionsAreRead() throws IOException {
        RerankExt ext = parse("{\"query\": \"words\", \"stack\": \"tfidf\", \"categories\": [\"a\"], \"min_score\": 0.5, \"explain\": true, \"off\": false}");
        assertEquals("words", ext.text("query"));
        assertEquals("tfidf", ext.text("stack"));
        assertEquals(List.of("a"), ext.values.get("categories"));
        assertEquals(0.5, ext.values.get("min_score"));
        assertTrue(ext.is("explain"));
        assertFalse(ext.is("off"));
        assertNull(parse("{}").text("query"));
        assertFalse(parse("{}").is("off"));
    }

    @ParameterizedTest
    @ValueSource(strings = {"{\"query\": 3}", "{\"stack\": [\"a\"]}", "{\"categories\": \"a\"}", "{\"categories\": [1]}",
        "{\"explain\": \"true\"}", "{\"off\": 1}", "{\"min_score\": \"0.5\"}", "{\"min_score\": 1e999}", "{\"of\": true}"})
    void whatIsUnknownOrOfAWrongType(String json) {
        String message = assertThrows(IllegalArgumentException.class, () -> parse(json)).getMessage();
        assertTrue(message.startsWith("ext.rerank_stack: ["), message);
    }

    @Test
    void optionsThatAreTooLongAreRefused() throws IOException {
        String longest = "x".repeat(RerankExt.LONGEST_QUERY);
        assertEquals(longest, parse("{\"query\": \"" + longest + "\"}").text("query"));
        for (String json : List.of("{\"query\": \"" + longest + "x\"}", "{\"stack\": \"" + longest + "\"}",
            "{\"categories\": [\"" + longest + "\"]}", "{\"categories\": [" + "\"a\", ".repeat(100) + "\"a\"]}")) {
            String message = assertThrows(IllegalArgumentException.class, () -> parse(json)).getMessage();
            assertTrue(message.contains("too long"), message);
        }
    }

    @Test
    void optionsAreRemovedFromTheRequest() throws IOException {
        RerankExt ours = parse("{\"off\": true}");
        SearchSourceBuilder source = new SearchSourceBuilder().ext(List.of(ours));
        assertSame(ours, RerankExt.take(source));
        assertEquals(List.of(), source.ext());
        assertEquals(Map.of(), RerankExt.take(source).values);
        assertEquals(Map.of(), RerankExt.take(null).values);
    }

    @Test
    void optionsAreSentBetweenNodes() throws IOException {
        RerankExt ext = parse("{\"query\": \"words\", \"categories\": [\"a\", \"b\"]}");
        try (BytesStreamOutput out = new BytesStreamOutput()) {
            ext.writeTo(out);
            assertEquals(ext, new RerankExt(out.bytes().streamInput().readMap()));
        }
    }
}
