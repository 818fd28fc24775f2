package rerank.opensearch;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.opensearch.cluster.metadata.IndexMetadata;
import org.opensearch.common.xcontent.support.XContentMapValues;

/** Stored features that cannot be read as binary doc values: requesting one fails the whole search. */
final class Mappings {
    private static final int MOST = 10_000;
    private final Map<String, Boolean> known = new ConcurrentHashMap<>();

    /** Whether an index has a field of another type with the name of a feature. */
    boolean isUnreadable(IndexMetadata index, String feature) {
        if (known.size() > MOST) {
            known.clear();
        }
        return known.computeIfAbsent(index.getIndexUUID() + "/" + index.getMappingVersion() + "/" + feature,
            key -> index.mapping() != null && isUnreadable(index.mapping().sourceAsMap(), feature));
    }

    static boolean isUnreadable(Map<String, Object> mapping, String feature) {
        Object features = XContentMapValues.extractValue("properties." + Protocol.FEATURES + "properties", mapping);
        Object field = features instanceof Map<?, ?> fields ? fields.get(feature) : null; // a missing field is ignored
        return field instanceof Map<?, ?> leaf
            && ("binary".equals(leaf.get("type")) && Boolean.TRUE.equals(leaf.get("doc_values"))) == false;
    }
}
