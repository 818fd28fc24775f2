package rerank.opensearch;

import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;
import org.opensearch.cluster.metadata.IndexMetadata;
import org.opensearch.cluster.metadata.MappingMetadata;
import org.opensearch.common.document.DocumentField;
import org.opensearch.common.regex.Regex;
import org.opensearch.search.SearchHit;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.search.collapse.CollapseBuilder;
import org.opensearch.search.fetch.subphase.FieldAndFormat;

/**
 * The groups of a search with {@code collapse}. Its candidates are single documents. After they are reranked, each group keeps
 * its best hit, on the coordinator, so that groups across shards are right. field: has the value of the group.
 */
record Groups(String field) {
    /** Fields that OpenSearch can group by; a search of other fields fails, as without the plugin. */
    private static final Set<String> TYPES = Set.of("keyword", "byte", "short", "integer", "long", "unsigned_long",
        "half_float", "float", "double");
    private static final int MOST_KNOWN = 1_000;
    /** Index, version of its mapping, and field -> whether the field can group. */
    private static final Map<List<Object>, Boolean> known = new ConcurrentHashMap<>();

    /** The groups of a search that can be reranked, or null. */
    static Groups of(SearchSourceBuilder user, List<IndexMetadata> indices) {
        CollapseBuilder collapse = user == null ? null : user.collapse();
        boolean isHybrid = collapse != null && user.query() != null && user.query().getName().equals("hybrid"); // groups by itself
        boolean isRescored = collapse != null && user.rescores() != null && user.rescores().isEmpty() == false; // refused
        if (collapse == null || isHybrid || isRescored || indices.isEmpty()) {
            return null;
        }
        boolean canGroup = indices.stream().allMatch(index -> canGroup(index, collapse.getField()));
        return canGroup ? new Groups(collapse.getField()) : null;
    }

    private static boolean canGroup(IndexMetadata index, String field) {
        List<Object> key = List.of(index.getIndexUUID(), index.getMappingVersion(), field);
        if (known.size() >= MOST_KNOWN) {
            known.clear();
        }
        return known.computeIfAbsent(key, k -> canGroup(index.mapping(), field));
    }

    private static boolean canGroup(MappingMetadata mapping, String field) {
        Map<?, ?> at = mapping == null ? null : mapping.sourceAsMap();
        for (String part : field.split("\\.")) {
            if (at == null) {
                return false;
            }
            Object child = child(at, "properties", part);
            child = child == null ? child(at, "fields", part) : child;
            at = child instanceof Map<?, ?> map ? map : null;
        }
        return at != null && TYPES.contains(Objects.toString(at.get("type"))) && "false".equals(Objects.toString(at.get("doc_values"))) == false;
    }

    private static Object child(Map<?, ?> at, String kind, String name) {
        return at.get(kind) instanceof Map<?, ?> children ? children.get(name) : null;
    }

    /** Whether the user requests the field in a form that can differ from its doc value. */
    boolean isShownOtherwise(SearchSourceBuilder user) {
        Stream<FieldAndFormat> docValues = Stream.ofNullable(user.docValueFields()).flatMap(List::stream)
            .filter(requested -> requested.format != null || requested.field.equals(field) == false);
        Stream<FieldAndFormat> values = Stream.ofNullable(user.fetchFields()).flatMap(List::stream);
        return Stream.concat(docValues, values).anyMatch(requested -> Regex.simpleMatch(requested.field, field));
    }

    /** Add the field to a search, as OpenSearch does for {@code collapse}. */
    SearchSourceBuilder with(SearchSourceBuilder source) {
        boolean isRequested = Stream.ofNullable(source.docValueFields()).flatMap(List::stream).anyMatch(requested -> requested.field.equals(field));
        return isRequested ? source : source.docValueField(field);
    }

    /** Whether each hit has at most one value: others cannot be grouped. */
    boolean areSingle(SearchHit[] hits) {
        return Arrays.stream(hits).map(hit -> hit.field(field)).allMatch(value -> value == null || value.getValues().size() < 2);
    }

    /** The first hit of each group. Hits without a value are one group. */
    List<ScoringResponse.Hit> first(List<ScoringResponse.Hit> ranked, ScoringRequest hits) {
        Set<Object> seen = new HashSet<>();
        return ranked.stream().filter(hit -> seen.add(value(hits.at(hit.position())))).toList();
    }

    private Object value(SearchHit hit) {
        DocumentField value = hit.field(field);
        return value == null || value.getValues().isEmpty() ? null : value.getValue();
    }
}
