package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.opensearch.common.io.stream.BytesStreamOutput;
import org.opensearch.common.settings.Settings;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.xcontent.DeprecationHandler;
import org.opensearch.core.xcontent.NamedXContentRegistry;
import org.opensearch.core.common.io.stream.StreamOutput;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.core.xcontent.XContentParser;
import org.opensearch.search.SearchExtBuilder;
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
        assertEquals(ours, RerankExt.take(source));
        assertEquals(List.of(), source.ext());
        assertEquals(Map.of(), RerankExt.take(source).values);
        assertEquals(Map.of(), RerankExt.take(null).values);
    }

    static QueryContext context(String json) throws IOException {
        try (XContentParser parser = JsonXContent.jsonXContent.createParser(
                NamedXContentRegistry.EMPTY, DeprecationHandler.THROW_UNSUPPORTED_OPERATION, json)) {
            return QueryContext.parse(parser);
        }
    }

    @Test
    void wordsAreAlsoReadWhereNeuralSearchReadsThem() throws IOException {
        QueryContext context = context("{\"query_context\": {\"query_text\": \"words\"}}");
        SearchSourceBuilder source = new SearchSourceBuilder().ext(List.of(context, parse("{\"lang\": \"de\"}")));
        assertEquals(Map.of("query", "words", "lang", "de"), RerankExt.take(source).values);
        assertEquals(List.of(), source.ext());
        source.ext(List.of(parse("{\"query\": \"other\"}"), context));
        assertEquals("other", RerankExt.take(source).text("query"));
        for (String json : List.of("{}", "{\"query_context\": 3}", "{\"query_context\": {\"query_text_path\": \"query.match\"}}")) {
            source.ext(List.of(context(json)));
            assertEquals(Map.of(), RerankExt.take(source).values);
        }
    }

    @Test
    void aNodeWithNeuralSearchReadsTheContextItself(@TempDir Path home) throws IOException {
        Settings settings = Settings.builder().put("path.home", home).build();
        assertFalse(QueryContext.isReadByNeuralSearch(settings));
        Path other = Files.createDirectories(home.resolve("plugins/opensearch-neural-search"));
        assertFalse(QueryContext.isReadByNeuralSearch(settings));
        Files.writeString(other.resolve("plugin-descriptor.properties"), "name=rerank\n");
        assertFalse(QueryContext.isReadByNeuralSearch(settings));
        Path theirs = Files.createDirectories(home.resolve("plugins/any"));
        Files.writeString(theirs.resolve("plugin-descriptor.properties"), "version=3\nname=opensearch-neural-search\n");
        assertTrue(QueryContext.isReadByNeuralSearch(settings));
    }

    /** {@code ext.ubi} as the plugin of User Behavior Insights writes it: its fields without its name. */
    private static SearchExtBuilder ubi(boolean isNamed, Map<String, ?> fields) {
        return new SearchExtBuilder() {
            @Override
            public String getWriteableName() {
                return "ubi";
            }

            @Override
            public void writeTo(StreamOutput out) { }

            @Override
            public XContentBuilder toXContent(XContentBuilder json, Params params) throws IOException {
                return isNamed ? json.field("ubi", fields) : json.mapContents(fields);
            }

            @Override
            public boolean equals(Object other) {
                return this == other;
            }

            @Override
            public int hashCode() {
                return 1;
            }
        };
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void idsOfUserBehaviorInsightsAreUsed(boolean isNamed) throws IOException {
        SearchExtBuilder ubi = ubi(isNamed, Map.of("query_id", "q1", "client_id", "c1", "user_query", "words"));
        SearchSourceBuilder source = new SearchSourceBuilder().ext(List.of(ubi));
        assertEquals(Map.of("query_id", "q1", "client_id", "c1"), RerankExt.take(source).values);
        assertEquals(List.of(ubi), source.ext());
        source.ext(List.of(ubi, parse("{\"client_id\": \"mine\", \"explain\": true}")));
        assertEquals(Map.of("query_id", "q1", "client_id", "mine", "explain", true), RerankExt.take(source).values);
    }

    @Test
    void idsOfUserBehaviorInsightsThatAreNoTextAreIgnored() {
        SearchSourceBuilder source = new SearchSourceBuilder().ext(List.of(ubi(false, Map.of("query_id", 7, "client_id", "x".repeat(301)))));
        assertEquals(Map.of(), RerankExt.take(source).values);
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
