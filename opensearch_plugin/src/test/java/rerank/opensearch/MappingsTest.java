package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class MappingsTest {
    private static final Map<String, Object> MAPPING = Map.of("properties", Map.of(
        "rerank_features", Map.of("properties", Map.of(
            "text@v", Map.of("type", "binary", "doc_values", true),
            "meta@v", Map.of("type", "text"),
            "idsOnly@v", Map.of("type", "binary")))));

    @ParameterizedTest
    @CsvSource({"text@v, false", "meta@v, true", "idsOnly@v, true", "none@v, false"})
    void aFieldOfAnotherTypeIsNotAskedFor(String field, boolean unreadable) {
        assertEquals(unreadable, Mappings.isUnreadable(MAPPING, field));
    }

    @Test
    void featuresOfAnotherTypeAreNotAskedFor() {
        Map<String, Object> mapping = Map.of("properties", Map.of("rerank_features", Map.of("type", "keyword")));
        assertFalse(Mappings.isUnreadable(mapping, "text@v"), "a missing field is ignored");
    }

    @Test
    void anIndexWithoutAMappingHasNothing() {
        assertFalse(Mappings.isUnreadable(Map.of(), "text@v"));
    }
}
