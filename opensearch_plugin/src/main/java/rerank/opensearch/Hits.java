package rerank.opensearch;

import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.stream.IntStream;
import org.opensearch.common.document.DocumentField;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.common.bytes.BytesReference;
import org.opensearch.core.xcontent.MediaTypeRegistry;
import org.opensearch.core.xcontent.ToXContent;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.search.SearchHit;

/** The candidates of one search, and the body of the call that asks for their scores (docs/hook_plugin.md). */
record Hits(Plan plan, List<SearchHit> hits, List<String> ids) {
    /** Bytes of a query's JSON that the service is sent; a call whose query is long blames nobody when it fails. */
    static final int LONGEST_QUERY = 1 << 18, LONG_QUERY = 1 << 14;

    /** Their ids are told apart where several indices or shards hold the same one. */
    static Hits of(Plan plan, SearchHit[] hits) {
        Set<String> ids = new LinkedHashSet<>();
        for (SearchHit hit : hits) {
            String id = id(plan, hit);
            for (int n = 1; ids.add(id) == false; n++) {
                id = hit.getIndex() + "/" + id(plan, hit) + "/" + n;
            }
        }
        return new Hits(plan, Arrays.asList(hits), List.copyOf(ids));
    }

    static boolean haveIds(Plan plan, SearchHit[] hits) {
        return Arrays.stream(hits).allMatch(hit -> id(plan, hit) != null);
    }

    static String id(Plan plan, SearchHit hit) {
        return plan.bare ? value(hit.field(plan.id)) : hit.getId();
    }

    private static String value(DocumentField field) {
        return field == null || field.getValues().isEmpty() ? null : field.getValue().toString();
    }

    /** Id -> categories of the first hits, where equal scores are ordered by id. */
    private Map<String, List<Object>> categories() {
        String field = plan.categories;
        Map<String, List<Object>> categories = new HashMap<>();
        if (field == null) {
            return categories;
        }
        IntStream.range(0, ids.size()).boxed()
            .sorted(Comparator.comparing((Integer i) -> -hits.get(i).getScore()).thenComparing(ids::get))
            .limit(plan.wishes.voters()).forEach(i -> {
                DocumentField values = hits.get(i).field(field);
                categories.put(ids.get(i), values == null ? List.of() : values.getValues());
            });
        return categories;
    }

    /** Take away what was fetched for the service alone. */
    void strip() {
        plan.added.forEach(field -> hits.forEach(hit -> hit.removeDocumentField(field)));
    }

    /** The query as OpenSearch writes it. */
    byte[] query() throws IOException {
        if (plan.user.query() == null) {
            return "null".getBytes(StandardCharsets.US_ASCII);
        }
        try (XContentBuilder json = JsonXContent.contentBuilder()) {
            plan.user.query().toXContent(json, ToXContent.EMPTY_PARAMS);
            return BytesReference.toBytes(BytesReference.bytes(json));
        }
    }

    byte[] body(byte[] query) throws IOException {
        Set<String> indices = new LinkedHashSet<>(Arrays.asList(plan.request.indices()));
        if (indices.isEmpty()) { // all indices, or those of a point in time
            hits.forEach(hit -> indices.add(hit.getIndex()));
        }
        ByteArrayOutputStream rows = new ByteArrayOutputStream();
        Map<String, Object> features = new LinkedHashMap<>();
        for (String feature : plan.wishes.features()) {
            features.put(feature, write(Answer.FEATURES + feature, rows));
        }
        try (XContentBuilder json = JsonXContent.contentBuilder()) {
            json.startObject().field("stack", plan.stack).field("index", indices);
            json.rawField("query", new ByteArrayInputStream(query), MediaTypeRegistry.JSON);
            json.field("rerank", plan.ext.values.isEmpty() ? null : plan.ext.values).field("ids", ids).startArray("scores");
            for (SearchHit hit : hits) {
                json.value(hit.getScore());
            }
            json.endArray().field("features", features).field("categories", categories());
            byte[] head = BytesReference.toBytes(BytesReference.bytes(json.endObject()));
            ByteArrayOutputStream body = new ByteArrayOutputStream(4 + head.length + rows.size());
            new DataOutputStream(body).writeInt(head.length);
            body.writeBytes(head);
            rows.writeTo(body);
            return body.toByteArray();
        }
    }

    /** Append the rows of one feature, and say how long each is and which hits have none. */
    private Map<String, Object> write(String field, ByteArrayOutputStream rows) {
        List<Integer> missing = new ArrayList<>();
        int length = 0;
        for (int i = 0; i < hits.size(); i++) {
            byte[] row = decode(value(hits.get(i).field(field)));
            length = length == 0 ? row.length : length;
            if (row.length == 0 || row.length != length) {
                missing.add(i);
            } else {
                rows.writeBytes(row);
            }
        }
        return Map.of("bytes", length, "missing", missing);
    }

    /** A row; what is damaged counts as missing. */
    private static byte[] decode(String text) {
        try {
            return text == null ? new byte[0] : Base64.getDecoder().decode(text);
        } catch (IllegalArgumentException e) {
            return new byte[0];
        }
    }
}
