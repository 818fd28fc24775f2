package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class MappingsTest {
    private static final Map<String, Object> MAPPING = Map.of("properties", Map.of(
        "id", Map.of("type", "keyword"),
        "tags", Map.of("type", "text", "fields", Map.of("keyword", Map.of("type", "keyword"))),
        "kind", Map.of("type", "keyword", "doc_values", false),
        "rerank_features", Map.of("properties", Map.of(
            "text@v", Map.of("type", "binary", "doc_values", true),
            "meta@v", Map.of("type", "text"),
            "idsOnly@v", Map.of("type", "binary")))));

    @ParameterizedTest
    @CsvSource({"id, false", "tags, true", "kind, true", "absent, false", "id.below, false", "rerank_features.text@v, false",
        "rerank_features.meta@v, true", "rerank_features.idsOnly@v, true", "rerank_features.none@v, false"})
    void aFieldOfAnotherTypeIsNotAskedFor(String field, boolean unreadable) {
        assertEquals(unreadable, Mappings.isUnreadable(MAPPING, field));
    }

    @Test
    void anIndexWithoutAMappingHasNothing() {
        assertFalse(Mappings.isUnreadable(Map.of(), "id"));
    }
}
