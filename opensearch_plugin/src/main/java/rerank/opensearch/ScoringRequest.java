package rerank.opensearch;

import java.io.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.stream.IntStream;
import org.apache.lucene.util.BytesRef;
import org.opensearch.common.document.DocumentField;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.common.bytes.BytesReference;
import org.opensearch.core.xcontent.MediaTypeRegistry;
import org.opensearch.core.xcontent.ToXContent;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.search.SearchHit;

/**
 * The candidates of one search, and the body of the call that asks for their scores (docs/guides/plugin.md). rest: hits
 * after them, in the order of the first stage.
 */
record ScoringRequest(SearchPlan plan, List<SearchHit> hits, List<String> ids, List<SearchHit> rest) {
    /** Bytes of a long query: if its call fails, the service is not blamed. */
    static final int LONG_QUERY = 1 << 14;
    /** Added to numbers of hits, for a fixed number of digits. */
    private static final int NUMBERS = 1_000_000;
    /** Scores of clauses in a call. */
    static final int MOST_CLAUSES = 20_000;

    /** Equal ids of several indices or shards become different. */
    static ScoringRequest of(SearchPlan plan, SearchHit[] found) {
        List<SearchHit> hits = Arrays.asList(found).subList(0, Math.min(found.length, plan.depth));
        Set<String> ids = new LinkedHashSet<>();
        for (SearchHit hit : hits) {
            String id = plan.withoutIds() ? Integer.toString(NUMBERS + ids.size()).substring(1) : id(plan, hit);
            for (int n = 1; ids.add(id) == false; n++) {
                id = hit.getIndex() + "/" + id(plan, hit) + "/" + n;
            }
        }
        return new ScoringRequest(plan, hits, List.copyOf(ids), Arrays.asList(found).subList(hits.size(), found.length));
    }

    static boolean haveIds(SearchPlan plan, SearchHit[] hits) {
        return plan.withoutIds() || Arrays.stream(hits).allMatch(hit -> id(plan, hit) != null);
    }

    static String id(SearchPlan plan, SearchHit hit) {
        return plan.withoutIds() ? "" : plan.idsOnly ? value(hit.field(plan.id)) : hit.getId();
    }

    /** A candidate, or one of the rest. */
    SearchHit at(int position) {
        return position < hits.size() ? hits.get(position) : rest.get(position - hits.size());
    }

    private static String value(DocumentField field) {
        return field == null || field.getValues().isEmpty() ? null : field.getValue().toString();
    }

    /** Id -> categories of the first hits; equal scores are ordered by id. */
    private Map<String, List<Object>> categories() {
        String field = plan.categories;
        Map<String, List<Object>> categories = new HashMap<>();
        if (field == null) {
            return categories;
        }
        IntStream.range(0, ids.size()).boxed()
            .sorted(Comparator.comparing((Integer i) -> -hits.get(i).getScore()).thenComparing(ids::get))
            .limit(plan.requested.categoryVotes()).forEach(i -> {
                DocumentField values = hits.get(i).field(field);
                categories.put(ids.get(i), values == null ? List.of() : values.getValues());
            });
        return categories;
    }

    /** Name of a clause -> its score for each hit, 0 without a match; null: not requested, or too many. */
    private Map<String, float[]> clauses() {
        Map<String, float[]> clauses = new TreeMap<>();
        for (int i = 0; plan.requested.clauses() && i < hits.size(); i++) {
            for (Map.Entry<String, Float> one : hits.get(i).getMatchedQueriesAndScores().entrySet()) {
                clauses.computeIfAbsent(one.getKey(), name -> new float[hits.size()])[i] = one.getValue();
            }
            if (clauses.size() * hits.size() > MOST_CLAUSES) {
                return null;
            }
        }
        return plan.requested.clauses() ? clauses : null;
    }

    /** Remove the fields that were added for the service. */
    void strip() {
        plan.added.forEach(field -> {
            hits.forEach(hit -> hit.removeDocumentField(field));
            rest.forEach(hit -> hit.removeDocumentField(field));
        });
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
        for (String feature : plan.requested.features()) {
            features.put(feature, write(Protocol.FEATURES + feature, rows));
        }
        try (XContentBuilder json = JsonXContent.contentBuilder()) {
            json.startObject().field("stack", plan.stack).field("index", indices);
            json.rawField("query", new ByteArrayInputStream(query), MediaTypeRegistry.JSON);
            Map<String, Object> said = new LinkedHashMap<>(plan.ext.values);
            said.remove("query_context"); // only for neural-search
            json.field("rerank", said.isEmpty() ? null : said);
            json.field("hits", hits.size());
            if (plan.withoutIds() == false) {
                json.field("ids", ids);
            }
            json.field("features", features).field("categories", categories());
            json.field("clauses", clauses());
            places(json);
            json.field("timeout", plan.timeout / 1000.0);
            byte[] head = BytesReference.toBytes(BytesReference.bytes(json.endObject()));
            byte[] numbers = numbers();
            return ByteBuffer.allocate(Protocol.FRAME + head.length + numbers.length + rows.size())
                .putInt(head.length).put(head).put(numbers).put(rows.toByteArray()).array();
        }
    }

    /** All scores, rounded as the service returns them; then, if requested, all shards, sequence numbers and terms. */
    private byte[] numbers() {
        ByteBuffer numbers = ByteBuffer.allocate(hits.size() * (8 + (plan.requested.places() ? 20 : 0)));
        hits.forEach(hit -> numbers.putDouble(Double.parseDouble(Float.toString(hit.getScore()))));
        if (plan.requested.places()) {
            hits.forEach(hit -> numbers.putInt(hit.getShard().getShardId().id()));
            hits.forEach(hit -> numbers.putLong(hit.getSeqNo()));
            hits.forEach(hit -> numbers.putLong(hit.getPrimaryTerm()));
        }
        return numbers.array();
    }

    /** The locations of the hits: documents of other indices have other features, or none. */
    private void places(XContentBuilder json) throws IOException {
        List<String> uuids = hits.stream().map(hit -> hit.getShard().getShardId().getIndex().getUUID()).toList();
        List<String> different = uuids.stream().distinct().toList();
        json.startObject("places").field("uuids", different);
        if (different.size() > 1) {
            json.field("index", uuids.stream().map(different::indexOf).toList());
        }
        json.field("follow", plan.requested.places()).endObject();
    }

    /** Append the rows of one feature; return their length and the hits without a row. */
    private Map<String, Object> write(String field, ByteArrayOutputStream rows) {
        List<Integer> missing = new ArrayList<>();
        int length = 0;
        for (int i = 0; i < hits.size(); i++) {
            byte[] row = row(hits.get(i).field(field));
            length = length == 0 ? row.length : length;
            if (row.length == 0 || row.length != length) {
                missing.add(i);
            } else {
                rows.writeBytes(row);
            }
        }
        return Map.of("bytes", length, "missing", missing);
    }

    private static byte[] row(DocumentField field) {
        return field != null && field.getValue() instanceof BytesRef bytes ? bytes.bytes : decode(value(field));
    }

    /** A row; a corrupted one counts as missing. */
    private static byte[] decode(String text) {
        try {
            return text == null ? new byte[0] : Base64.getDecoder().decode(text);
        } catch (IllegalArgumentException e) {
            return new byte[0];
        }
    }
}
