package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.opensearch.common.settings.Settings;
import org.opensearch.common.xcontent.LoggingDeprecationHandler;
import org.opensearch.common.xcontent.XContentHelper;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.common.bytes.BytesReference;
import org.opensearch.core.xcontent.NamedXContentRegistry;
import org.opensearch.core.xcontent.ToXContent;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.core.xcontent.XContentParser;
import org.opensearch.index.query.AbstractQueryBuilder;
import org.opensearch.index.query.QueryBuilder;
import org.opensearch.search.SearchModule;

class ConditionsTest {
    private static final NamedXContentRegistry QUERIES =
        new NamedXContentRegistry(new SearchModule(Settings.EMPTY, List.of()).getNamedXContents());

    record Case(String name, Object query, List<String> words, List<?> conditions) {
        @Override
        public String toString() {
            return name;
        }
    }

    @SuppressWarnings("unchecked")
    static Stream<Case> cases() throws IOException {
        String json = Files.readString(Path.of("..", "tests", "conditions.json"));
        Map<String, Object> all = XContentHelper.convertToMap(JsonXContent.jsonXContent, "{\"cases\": " + json + "}", true);
        return ((List<Map<String, Object>>) all.get("cases")).stream().map(one -> new Case((String) one.get("name"),
            one.get("query"), (List<String>) one.get("words"), (List<?>) one.get("conditions")));
    }

    @ParameterizedTest
    @MethodSource("cases")
    void theConditionsOfAQuery(Case test) {
        if (test.conditions == null) {
            assertThrows(Conditions.UnknownException.class, () -> Conditions.of(test.query, test.words));
        } else {
            assertEquals(test.conditions, Conditions.of(test.query, test.words));
        }
    }

    private static XContentBuilder json(Object value) throws IOException {
        return JsonXContent.contentBuilder().value(value);
    }

    private static QueryBuilder parsed(Object query) throws IOException {
        try (XContentParser parser = JsonXContent.jsonXContent.createParser(QUERIES, LoggingDeprecationHandler.INSTANCE,
                BytesReference.bytes(json(query)).streamInput())) {
            return AbstractQueryBuilder.parseInnerQueryBuilder(parser);
        }
    }

    private static Map<String, Object> written(QueryBuilder query) throws IOException {
        return XContentHelper.convertToMap(JsonXContent.jsonXContent,
            query.toXContent(JsonXContent.contentBuilder(), ToXContent.EMPTY_PARAMS).toString(), true);
    }

    /** A query as a node has parsed and written it has the same conditions. */
    @ParameterizedTest
    @MethodSource("cases")
    void theConditionsOfAParsedQuery(Case test) throws IOException {
        QueryBuilder query;
        try {
            query = parsed(test.query);
        } catch (RuntimeException e) {
            return; // of another plugin, or invalid
        }
        if (test.conditions == null) {
            assertThrows(Conditions.UnknownException.class, () -> Conditions.of(written(query), test.words));
            return;
        }
        List<Object> conditions = Conditions.of(written(query), test.words);
        assertEquals(test.conditions.size(), conditions.size());
        for (int i = 0; i < conditions.size(); i++) {
            assertEquals(parsed(test.conditions.get(i)), parsed(conditions.get(i)));
        }
    }

    @Test
    void mostCasesAreQueriesOfOpenSearch() throws IOException {
        long parsed = cases().filter(test -> {
            try {
                return parsed(test.query) != null;
            } catch (IOException | RuntimeException e) {
                return false;
            }
        }).count();
        assertTrue(parsed > 40, "parsed " + parsed);
    }
}
