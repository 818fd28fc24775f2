package rerank.opensearch;

import java.nio.ByteBuffer;
import java.util.*;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.opensearch.common.xcontent.XContentHelper;
import org.opensearch.common.xcontent.json.JsonXContent;
import rerank.opensearch.ScoringClient.Failure;

/**
 * What the service says, checked: a reason to pass, or all hits, best first; and its requested for the next call. explained: the parts
 * of {@link #EXPLAINED} that it answers, for searches that ask for an explanation.
 */
record ScoringResponse(String passed, List<Hit> hits, RequestedFields requested, Map<String, Object> explained) {
    /** The weights that the service has used, and how many hits had no stored features. */
    private static final List<String> EXPLAINED = List.of("weights", "without_features");
    /** The object field that holds the features (rerank/engines/opensearch/layout.py). */
    static final String FEATURES = "rerank_features.";
    private static final int MOST_VOTES = 100;
    private static final Pattern PLAIN = Pattern.compile("[^*?,.\\s]{1,200}");

    /** position: in the first stage's order. signals: what the service tells about it, or null. */
    record Hit(int position, float score, Object signals) { }

    /**
     * What the service wants with a call. features: of each hit. categoryVotes: how many of the first hits' categories. places:
     * shard, sequence number and primary term of each hit; withoutIds: it needs no ids then. clauses: the scores of the
     * query's named clauses. numbers: scores and places as bytes behind the JSON, as the answer has its own then. It names no
     * fields: those are in the pipeline, or it could have any of other users' hits.
     */
    record RequestedFields(List<String> features, int categoryVotes, boolean places, boolean withoutIds, boolean clauses, boolean numbers) {
        /** Before the first call. Clauses come along: the service can look up everything but them. */
        static final RequestedFields NONE = new RequestedFields(List.of(), 0, false, false, true, false);

        /** Fields to fetch. categories: the pipeline's field of them, or null. */
        List<String> fields(String categories) {
            return Stream.concat(features.stream().map(FEATURES::concat), Stream.ofNullable(categoryVotes > 0 ? categories : null)).toList();
        }

        /** Without the features that could not be read. */
        RequestedFields without(Predicate<String> unreadable) {
            List<String> kept = features.stream().filter(name -> unreadable.test(FEATURES + name) == false).toList();
            return new RequestedFields(kept, categoryVotes, places, withoutIds, clauses, numbers);
        }

        static RequestedFields read(Map<?, ?> said) {
            if (said.get("features") instanceof List<?> list && list.size() <= 32 && list.stream().allMatch(RequestedFields::plain)
                && said.get("category_votes") instanceof Integer categoryVotes && categoryVotes >= 0 && categoryVotes <= MOST_VOTES) {
                boolean places = Boolean.TRUE.equals(said.get("places"));
                return new RequestedFields(list.stream().map(String.class::cast).distinct().toList(), categoryVotes, places,
                    places && Boolean.TRUE.equals(said.get("without_ids")), Boolean.TRUE.equals(said.get("clauses")),
                    Boolean.TRUE.equals(said.get("numbers")));
            }
            throw new Failure("bad_answer", "requested for what cannot be");
        }

        /** Anything else than a plain name could be a pattern, or lead into other fields. */
        private static boolean plain(Object name) {
            return name instanceof String text && PLAIN.matcher(text).matches();
        }
    }

    static ScoringResponse passed(String reason) {
        return new ScoringResponse(reason, null, null, Map.of());
    }

    /** ties: how hits with equal scores are ordered, where they do not stay as answered; or null. */
    static ScoringResponse read(byte[] bytes, List<String> sent, Comparator<Integer> ties) {
        boolean numbers = bytes.length >= 4 && bytes[0] == ScoringRequest.NUMBERS_FOLLOW; // no JSON begins like that
        int begin = numbers ? 4 : 0, end = numbers ? 4 + (ByteBuffer.wrap(bytes).getInt() & 0xFFFFFF) : bytes.length;
        if (end > bytes.length) {
            throw new Failure("bad_answer", "announced " + end + " bytes, and answered " + bytes.length);
        }
        Map<String, Object> answer = map(bytes, begin, end - begin);
        RequestedFields requested = answer.get("requested_fields") instanceof Map<?, ?> said ? RequestedFields.read(said) : null;
        if (answer.get("passed") instanceof String reason) {
            return new ScoringResponse(reason.substring(0, Math.min(reason.length(), 64)), null, requested, Map.of());
        }
        List<?> signals = answer.get("signals") == null ? null : list(answer, "signals", sent.size());
        List<Hit> hits = numbers
            ? hits(ByteBuffer.wrap(bytes, end, bytes.length - end), sent.size(), signals) : hits(answer, sent, signals);
        Comparator<Hit> best = Comparator.comparing(Hit::score).reversed(); // stable: equal scores stay as answered
        hits.sort(ties == null ? best : best.thenComparing(Hit::position, ties));
        Map<String, Object> explained = new LinkedHashMap<>();
        EXPLAINED.stream().filter(name -> answer.get(name) instanceof Map).forEach(name -> explained.put(name, answer.get(name)));
        return new ScoringResponse(null, hits, requested, explained);
    }

    private static Map<String, Object> map(byte[] bytes, int begin, int length) {
        try {
            return XContentHelper.convertToMap(JsonXContent.jsonXContent, bytes, begin, length, true);
        } catch (RuntimeException e) {
            throw new Failure("not_json", "did not answer in JSON");
        }
    }

    /** What an answer of another status than 200 says of a search that the service refuses: {@code ": why"}, or nothing. */
    static String refusal(int status, byte[] body) {
        try {
            boolean refused = status == 400 || status == 413 || status == 422; // others may come from a proxy
            Object why = refused ? XContentHelper.convertToMap(JsonXContent.jsonXContent, body, 0, body.length, false).get("error") : null;
            return why instanceof String text ? ": " + text.substring(0, Math.min(text.length(), 500)) : "";
        } catch (RuntimeException e) {
            return "";
        }
    }

    private static List<Hit> hits(Map<String, Object> answer, List<String> sent, List<?> signals) {
        List<?> ids = list(answer, "ids", sent.size());
        List<?> scores = list(answer, "scores", sent.size());
        Map<String, Integer> positions = new HashMap<>();
        sent.forEach(id -> positions.put(id, positions.size()));
        List<Hit> hits = new ArrayList<>(sent.size());
        for (int i = 0; i < sent.size(); i++) {
            Integer position = positions.remove(ids.get(i)); // no id was sent twice, so this finds each or fails
            hits.add(hit(position, scores.get(i) instanceof Number number ? number.floatValue() : Float.NaN, signals, i));
        }
        return hits;
    }

    /** Of as many hits as were sent: all places, then all scores. */
    private static List<Hit> hits(ByteBuffer numbers, int size, List<?> signals) {
        if (numbers.remaining() != 8 * size) {
            throw new Failure("bad_answer", "did not answer " + size + " places and scores");
        }
        BitSet found = new BitSet(size);
        List<Hit> hits = new ArrayList<>(size);
        for (int i = 0, begin = numbers.position(); i < size; i++) {
            int position = numbers.getInt(begin + 4 * i);
            boolean known = position >= 0 && position < size && found.get(position) == false;
            if (known) {
                found.set(position);
            }
            hits.add(hit(known ? position : null, numbers.getFloat(begin + 4 * (size + i)), signals, i));
        }
        return hits;
    }

    private static Hit hit(Integer position, float score, List<?> signals, int i) {
        if (position == null || Float.isFinite(score) == false) {
            throw new Failure("bad_answer", "answered an id twice, an unknown id, or a score that is no finite number");
        }
        return new Hit(position, score, signals == null ? null : signals.get(i));
    }

    private static List<?> list(Map<String, Object> answer, String name, int size) {
        if (answer.get(name) instanceof List<?> list && list.size() == size) {
            return list;
        }
        throw new Failure("bad_answer", "did not answer " + size + " " + name);
    }
}
