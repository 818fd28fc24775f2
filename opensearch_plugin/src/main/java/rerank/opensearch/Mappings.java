package rerank.opensearch;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.opensearch.cluster.metadata.IndexMetadata;
import org.opensearch.cluster.metadata.MappingMetadata;

/** Fields of an index that cannot be read as doc values: requesting one fails the whole search. */
final class Mappings {
    private static final int MOST = 10_000;
    private final Map<String, Boolean> known = new ConcurrentHashMap<>();

    /** Whether an index has a field of another type: features are binary, other fields are keywords. */
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
                // A field that does not exist is ignored.
                return false;
            }
        }
        if (found instanceof Map<?, ?> leaf) {
            boolean feature = field.startsWith(Protocol.FEATURES);
            boolean right = (feature ? "binary" : "keyword").equals(leaf.get("type"));
            Object values = leaf.get("doc_values");
            return (right && (feature ? Boolean.TRUE : Boolean.FALSE).equals(values) == feature) == false;
        }
        return false;
    }
}
