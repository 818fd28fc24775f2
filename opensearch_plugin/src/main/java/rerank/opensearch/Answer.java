package rerank.opensearch;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.opensearch.common.xcontent.XContentHelper;
import org.opensearch.common.xcontent.json.JsonXContent;

/** What the service says, checked: a reason to pass, or all hits, best first. */
record Answer(String passed, List<Hit> hits, List<String> features) {
    private static final int MOST_FEATURES = 32;

    /** position: in the first stage's order. signals: what the service tells about it, or null. */
    record Hit(int position, float score, Object signals) {
    }

    static Answer passed(String reason) {
        return new Answer(reason, null, null);
    }

    static Answer read(byte[] bytes, List<String> sent) {
        Map<String, Object> answer;
        try {
            answer = XContentHelper.convertToMap(JsonXContent.jsonXContent, bytes, 0, bytes.length, true);
        } catch (RuntimeException e) {
            throw new Failure("not_json", "did not answer in JSON");
        }
        List<String> features = answer.get("features") instanceof List<?> list ? features(list) : null;
        if (answer.get("passed") instanceof String reason) {
            return new Answer(reason.substring(0, Math.min(reason.length(), 64)), null, features);
        }
        List<?> ids = list(answer, "ids", sent.size());
        List<?> scores = list(answer, "scores", sent.size());
        List<?> signals = answer.get("signals") == null ? null : list(answer, "signals", sent.size());
        Map<String, Integer> positions = new HashMap<>();
        for (int i = 0; i < sent.size(); i++) {
            positions.put(sent.get(i), i);
        }
        List<Hit> hits = new ArrayList<>(sent.size());
        for (int i = 0; i < sent.size(); i++) {
            // Ids that were sent are different, so as many known and different ones are all of them.
            Integer position = positions.remove(ids.get(i));
            if (position == null) {
                throw new Failure("bad_answer", "answered an id twice or one that was not sent");
            }
            float score = scores.get(i) instanceof Number number ? number.floatValue() : Float.NaN;
            if (Float.isFinite(score) == false) {
                throw new Failure("bad_answer", "answered a score that is no finite number");
            }
            hits.add(new Hit(position, score, signals == null ? null : signals.get(i)));
        }
        hits.sort(Comparator.comparing(Hit::score).reversed()); // stable: equal scores stay as answered
        return new Answer(null, hits, features);
    }

    private static List<?> list(Map<String, Object> answer, String name, int size) {
        if (answer.get(name) instanceof List<?> list && list.size() == size) {
            return list;
        }
        throw new Failure("bad_answer", "did not answer " + size + " " + name);
    }

    private static List<String> features(List<?> list) {
        if (list.size() > MOST_FEATURES || list.stream().allMatch(Answer::isName) == false) {
            throw new Failure("bad_answer", "wants features of which some have no possible name");
        }
        return list.stream().map(String.class::cast).distinct().toList();
    }

    private static boolean isName(Object name) {
        // Anything else could be a pattern or lead into other fields.
        return name instanceof String text && text.matches("[^*?,.\\s]{1,200}");
    }
}
