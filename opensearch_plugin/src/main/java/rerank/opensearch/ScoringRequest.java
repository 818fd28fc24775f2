package rerank.opensearch;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.lucene.util.BytesRef;
import org.opensearch.common.document.DocumentField;
import org.opensearch.common.xcontent.json.JsonXContent;
import org.opensearch.core.common.bytes.BytesReference;
import org.opensearch.core.xcontent.MediaTypeRegistry;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.search.SearchHit;
import rerank.opensearch.ScoringClient.Failure;

/**
 * The candidates of one search, and the body of the call that asks for their scores (docs/reference/http.md). first:
 * number of candidates that the query has found; the others were added. rest: hits of the query after them, in the order of the
 * first stage.
 */
record ScoringRequest(SearchPlan plan, List<SearchHit> hits, int first, List<SearchHit> rest) {
    /** Bytes of score, shard, sequence number and primary term of a hit. */
    private static final int NUMBERS = 28;

    static ScoringRequest of(SearchPlan plan, SearchHit[] found, Added added) {
        // With aggregations, the search has also found documents that its query does not match.
        List<SearchHit> all = plan.united == null || added.unmatched().isEmpty() ? Arrays.asList(found)
            : Arrays.stream(found).filter(hit -> added.unmatched().contains(Added.Place.of(hit)) == false).toList();
        int depth = Math.min(all.size(), plan.depth);
        List<SearchHit> first = all.subList(0, depth), rest = all.subList(depth, all.size());
        if (added.hits().isEmpty()) {
            return new ScoringRequest(plan, first, depth, rest);
        }
        Set<Added.Place> places = new HashSet<>();
        first.forEach(hit -> places.add(Added.Place.of(hit)));
        List<SearchHit> hits = new ArrayList<>(first);
        added.hits().stream().filter(hit -> places.add(Added.Place.of(hit))).forEach(hits::add);
        return new ScoringRequest(plan, hits, depth, rest);
    }

    /** Whether the hits have candidates that were added. */
    boolean hasAdded() {
        return first < hits.size();
    }

    /**
     * The candidates in the answered order, or in the order of the first stage without added ones, then the other hits of the
     * query. An added document that was scored is not among the others.
     */
    List<ScoringResponse.Hit> ranked(List<ScoringResponse.Hit> answered, boolean withRest) {
        List<ScoringResponse.Hit> ranked = new ArrayList<>();
        if (answered == null) {
            hits.subList(0, first).forEach(hit -> ranked.add(new ScoringResponse.Hit(ranked.size(), hit.getScore())));
        } else {
            ranked.addAll(answered);
        }
        if (withRest) {
            Set<Added.Place> places = new HashSet<>();
            ranked.stream().filter(hit -> hit.position() >= first).forEach(hit -> places.add(Added.Place.of(at(hit.position()))));
            for (int i = 0; i < rest.size(); i++) {
                if (places.contains(Added.Place.of(rest.get(i))) == false) {
                    ranked.add(new ScoringResponse.Hit(hits.size() + i, rest.get(i).getScore()));
                }
            }
        }
        if (answered == null && plan.united != null) { // the total and the aggregations of the search count them
            Set<Added.Place> places = new HashSet<>();
            rest.forEach(hit -> places.add(Added.Place.of(hit)));
            for (int i = first; i < hits.size(); i++) {
                if (places.contains(Added.Place.of(hits.get(i))) == false) {
                    ranked.add(new ScoringResponse.Hit(i, hits.get(i).getScore()));
                }
            }
        }
        return ranked;
    }

    /** Whether a hit was added, and the query does not match it. */
    boolean isUnmatched(ScoringResponse.Hit hit, Added added) {
        return hit.position() >= first && hit.position() < hits.size() && added.unmatched().contains(Added.Place.of(at(hit.position())));
    }

    /** A candidate, or another hit. */
    SearchHit at(int position) {
        return position < hits.size() ? hits.get(position) : rest.get(position - hits.size());
    }

    /** Remove the fields that were added for the service. */
    void strip() {
        plan.added.forEach(field -> {
            hits.forEach(hit -> hit.removeDocumentField(field));
            rest.forEach(hit -> hit.removeDocumentField(field));
        });
        hits.forEach(plan.legs::strip);
        rest.forEach(plan.legs::strip);
        plan.legs.restore();
    }

    /** The JSON, the numbers of the hits, then for each feature all lengths and all values. */
    byte[] body(byte[] query, int timeout, org.opensearch.core.common.breaker.CircuitBreaker memory) throws IOException {
        byte[] head = fittingHead(query, timeout);
        List<byte[][]> features = plan.requested.features().stream()
            .map(name -> hits.stream().map(hit -> value(hit, name)).toArray(byte[][]::new)).toList();
        int size = features.stream().flatMap(Arrays::stream).mapToInt(value -> Integer.BYTES + value.length).sum();
        size += Protocol.FRAME + head.length + NUMBERS * hits.size();
        memory.addEstimateBytesAndMaybeBreak(size, "call of the rerank service");
        ByteBuffer body = ByteBuffer.allocate(size);
        body.putInt(head.length).put(head);
        hits.forEach(hit -> body.putDouble(Double.parseDouble(Float.toString(hit.getScore())))); // as in JSON
        hits.forEach(hit -> body.putInt(hit.getShard().getShardId().id()));
        hits.forEach(hit -> body.putLong(hit.getSeqNo()));
        hits.forEach(hit -> body.putLong(hit.getPrimaryTerm()));
        for (byte[][] values : features) {
            for (byte[] value : values) {
                body.putInt(value.length);
            }
            for (byte[] value : values) {
                body.put(value);
            }
        }
        return body.array();
    }

    /** The JSON, if necessary without names: the service finds documents of OpenSearch also by their places. */
    private byte[] fittingHead(byte[] query, int timeout) throws IOException {
        byte[] head = head(query, timeout, true);
        boolean mustHaveIds = plan.requested.ids() && plan.requested.isKnown();
        if (head.length > Protocol.LONGEST_JSON && mustHaveIds == false) {
            head = head(query, timeout, false);
        }
        if (head.length > Protocol.LONGEST_JSON) {
            throw new Failure("JSON above " + (Protocol.LONGEST_JSON >> 20) + " MiB", "would get a call that is too long");
        }
        return head;
    }

    private byte[] head(byte[] query, int timeout, boolean withNames) throws IOException {
        Set<String> indices = new LinkedHashSet<>(Arrays.asList(plan.request.indices()));
        if (indices.isEmpty()) { // all indices, or the indices of a point in time
            hits.forEach(hit -> indices.add(hit.getIndex()));
        }
        // Documents of other indices have other features, or none.
        List<String> uuids = hits.stream().map(hit -> hit.getShard().getShardId().getIndex().getUUID()).toList();
        List<String> different = uuids.stream().distinct().toList();
        try (XContentBuilder json = JsonXContent.contentBuilder()) {
            json.startObject().field("stack", plan.stack).field("stack_allowed", plan.isStackAllowed);
            json.field("shadow", plan.asker.config.shadow());
            json.field("raw_values", plan.showsValues).field("min_score", plan.minScore).field("index", withNames ? indices : List.of());
            json.rawField("query", new ByteArrayInputStream(query), MediaTypeRegistry.JSON);
            json.field("rerank", plan.ext.values.isEmpty() ? null : plan.ext.values);
            json.field("hits", hits.size());
            if (plan.retrieval != null) {
                json.field("first", first);
            }
            if (plan.idsOnly == false && withNames) {
                json.field("ids", hits.stream().map(SearchHit::getId).toList());
            }
            json.field("features", plan.requested.features());
            json.startObject("places").field("uuids", different);
            if (different.size() > 1) {
                json.field("index", uuids.stream().map(different::indexOf).toList());
            }
            json.endObject().field("timeout", timeout / 1000.0);
            return BytesReference.toBytes(BytesReference.bytes(json.endObject()));
        }
    }

    private static byte[] value(SearchHit hit, String feature) {
        return Legs.isLeg(feature) ? Legs.score(hit, feature) : value(hit.field(Protocol.FEATURES + feature));
    }

    /** A stored value; a corrupted one counts as missing. */
    private static byte[] value(DocumentField field) {
        try {
            Object value = field == null ? null : field.getValue();
            return value instanceof BytesRef bytes
                ? BytesRef.deepCopyOf(bytes).bytes : Base64.getDecoder().decode(Objects.toString(value, ""));
        } catch (IllegalArgumentException e) {
            return new byte[0];
        }
    }
}
