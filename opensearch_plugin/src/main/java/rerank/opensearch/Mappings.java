package rerank.opensearch;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.opensearch.cluster.metadata.IndexMetadata;
import org.opensearch.cluster.metadata.MappingMetadata;

/** Which fields cannot be read as doc values, though an index has them: asking for one fails the whole search. */
final class Mappings {
    private static final int MOST = 10_000;
    private final Map<String, Boolean> known = new ConcurrentHashMap<>();

    /** Whether an index has a field, and not as what it is to be: a binary one for features, keywords else. */
    boolean isUnreadable(IndexMetadata index, String field) {
        if (known.size() > MOST) {
            known.clear();
        }
        String key = index.getIndexUUID() + "/" + index.getMappingVersion() + "/" + field;
        return known.computeIfAbsent(key, k -> {
            MappingMetadata mapping = index.mapping();
            return mapping != null && isUnreadable(mapping.sourceAsMap(), field);
        });
    }

    static boolean isUnreadable(Map<?, ?> mapping, String field) {
        Object found = mapping;
        for (String part : field.split("\\.")) {
            if (found instanceof Map<?, ?> above && above.get("properties") instanceof Map<?, ?> properties) {
                found = properties.get(part);
            } else {
                // Of an object nothing is there; what is no object cannot have the field either, and ignores it.
                return false;
            }
        }
        if (found instanceof Map<?, ?> leaf) {
            boolean feature = field.startsWith(ScoringResponse.FEATURES);
            boolean right = (feature ? "binary" : "keyword").equals(leaf.get("type"));
            Object values = leaf.get("doc_values");
            return (right && (feature ? Boolean.TRUE : Boolean.FALSE).equals(values) == feature) == false;
        }
        return false;
    }
}
