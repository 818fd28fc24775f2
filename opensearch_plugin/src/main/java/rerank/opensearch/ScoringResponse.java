package rerank.opensearch;

import java.nio.ByteBuffer;
import java.util.*;
import java.util.regex.Pattern;
import org.opensearch.common.xcontent.XContentHelper;
import org.opensearch.common.xcontent.json.JsonXContent;
import rerank.opensearch.ScoringClient.Failure;

/**
 * The checked answer of the service. outcome: reranked, passed or failed; the last two have a reason. hits: all that were not
 * removed, best first, if reranked. requested: the fields to send with the next call, or null. explained: fields in {@link #EXPLAINED}.
 */
record ScoringResponse(String outcome, String reason, List<Hit> hits, RequestedFields requested, Map<String, Object> explained) {
    /** Fields of the answer that an explanation shows. */
    private static final Map<String, Class<?>> EXPLAINED =
        Map.of("weights", Map.class, "experiment", Map.class, "without_features", Map.class, "unknown_categories", List.class, "removed", Integer.class);
    private static final Pattern PLAIN = Pattern.compile("[^*?,.\\s]{1,200}");

    /**
     * position: in the order of the call. signals: its explanation, or null. relevance: its probability, or null. foundBy: names of
     * the rankers that retrieve it, or null.
     */
    record Hit(int position, float score, Object signals, Object relevance, Object foundBy) {
        Hit(int position, float score) {
            this(position, score, null, null, null);
        }
    }

    /**
     * Fields to send with a call. features: stored values of each hit, and scores of clauses. ids: ids of the hits. isKnown:
     * whether the service has requested them. The service cannot name other fields of an index.
     */
    record RequestedFields(List<String> features, boolean ids, boolean isKnown) {
        /** Before the first call. */
        static final RequestedFields NONE = new RequestedFields(List.of(), true, false);

        RequestedFields(List<String> features, boolean ids) {
            this(features, ids, true);
        }

        RequestedFields withFeatures(List<String> others) {
            return new RequestedFields(others, ids, isKnown);
        }

        static RequestedFields read(Map<?, ?> fields) {
            if (fields.get("features") instanceof List<?> list && list.size() <= 32 && list.stream().allMatch(RequestedFields::plain)) {
                return new RequestedFields(list.stream().map(String.class::cast).distinct().toList(),
                    Boolean.TRUE.equals(fields.get("ids")));
            }
            throw new Failure("bad_answer", "requested fields whose names are not allowed");
        }

        /** Another text could be a pattern, or name another field. */
        private static boolean plain(Object name) {
            return name instanceof String text && PLAIN.matcher(text).matches();
        }
    }

    static ScoringResponse passed(String reason) {
        return new ScoringResponse("passed", reason, null, null, Map.of());
    }

    static ScoringResponse failed(Failure failure) {
        return new ScoringResponse("failed", failure.reason, null, null, Map.of());
    }

    /**
     * sent: number of hits. byPosition: whether equal scores stay in the order of the first stage; otherwise as answered.
     * removes: whether the service removes hits of a small probability.
     */
    static ScoringResponse read(byte[] bytes, int sent, boolean byPosition, boolean removes) {
        int length = bytes.length < Protocol.FRAME ? -1 : ByteBuffer.wrap(bytes).getInt();
        if (length < 0 || length > bytes.length - Protocol.FRAME) {
            throw new Failure("bad_answer", "answered " + bytes.length + " bytes, and announced " + length);
        }
        Map<String, Object> answer = map(bytes, length);
        RequestedFields requested = answer.get("requested_fields") instanceof Map<?, ?> fields ? RequestedFields.read(fields) : null;
        if (answer.get("passed") instanceof String reason) {
            return new ScoringResponse("passed", reason.substring(0, Math.min(reason.length(), 64)), null, requested, Map.of());
        }
        if (removes && answer.get("removed") instanceof Integer == false) {
            return new ScoringResponse("passed", "the service has no min_score", null, requested, Map.of()); // an older service
        }
        int dropped = answer.get("dropped") instanceof Integer number && number >= 0 ? number : 0; // beyond the depth of a ranker
        int size = sent - dropped - (removes ? (Integer) answer.get("removed") : 0), begin = Protocol.FRAME + length;
        List<Hit> hits = hits(ByteBuffer.wrap(bytes, begin, bytes.length - begin), sent, size, answer);
        Comparator<Hit> best = Comparator.comparing(Hit::score).reversed(); // stable: equal scores stay as answered
        hits.sort(byPosition ? best.thenComparing(Hit::position) : best);
        Map<String, Object> explained = new TreeMap<>(answer);
        explained.entrySet().removeIf(field -> EXPLAINED.getOrDefault(field.getKey(), Void.class).isInstance(field.getValue()) == false);
        return new ScoringResponse("reranked", null, hits, requested, explained);
    }

    private static Map<String, Object> map(byte[] bytes, int length) {
        try {
            return XContentHelper.convertToMap(JsonXContent.jsonXContent, bytes, Protocol.FRAME, length, true);
        } catch (RuntimeException e) {
            throw new Failure("bad_answer", "did not answer in JSON");
        }
    }

    /** The reason of a refused search, as {@code ": reason"}, or nothing. */
    static String refusal(int status, byte[] body) {
        try {
            boolean refused = status == 400 || status == 413 || status == 422; // others may come from a proxy
            Object why = refused ? XContentHelper.convertToMap(JsonXContent.jsonXContent, body, 0, body.length, false).get("error") : null;
            return why instanceof String text ? ": " + text.substring(0, Math.min(text.length(), 500)) : "";
        } catch (RuntimeException e) {
            return "";
        }
    }

    /** Positions of {@code size} of the sent hits, then their scores. */
    private static List<Hit> hits(ByteBuffer numbers, int sent, int size, Map<String, Object> answer) {
        if (size < 0 || numbers.remaining() != 8 * size) {
            throw new Failure("bad_answer", "did not answer " + size + " places and scores");
        }
        List<?> signals = list(answer, "signals", size), relevance = list(answer, "relevance", size);
        List<?> foundBy = list(answer, "found_by", size);
        BitSet found = new BitSet(sent);
        List<Hit> hits = new ArrayList<>(size);
        for (int i = 0, begin = numbers.position(); i < size; i++) {
            int position = numbers.getInt(begin + 4 * i);
            float score = numbers.getFloat(begin + 4 * (size + i));
            if (position < 0 || position >= sent || found.get(position) || Float.isFinite(score) == false) {
                throw new Failure("bad_answer", "answered a place twice, an unknown place, or a score that is no finite number");
            }
            found.set(position);
            hits.add(new Hit(position, score, signals.get(i), relevance.get(i), foundBy.get(i)));
        }
        return hits;
    }

    /** The values of the hits in a field; nulls without the field. */
    private static List<?> list(Map<String, Object> answer, String field, int size) {
        if (answer.get(field) == null) {
            return Collections.nCopies(size, null);
        }
        if (answer.get(field) instanceof List<?> list && list.size() == size) {
            return list;
        }
        throw new Failure("bad_answer", "did not answer " + size + " values of " + field);
    }
}
