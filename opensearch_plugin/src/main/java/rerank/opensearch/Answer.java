package rerank.opensearch;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.opensearch.common.xcontent.XContentHelper;
import org.opensearch.common.xcontent.json.JsonXContent;
import rerank.opensearch.Service.Failure;

/** What the service says, checked: a reason to pass, or all hits, best first; and the features that it wants. */
record Answer(String passed, List<Hit> hits, List<String> features) {

    /** position: in the first stage's order. signals: what the service tells about it, or null. */
    record Hit(int position, float score, Object signals) { }

    static Answer read(byte[] bytes, List<String> sent) {
        Map<String, Object> answer;
        try {
            answer = XContentHelper.convertToMap(JsonXContent.jsonXContent, bytes, 0, bytes.length, true);
        } catch (RuntimeException e) {
            throw new Failure("not_json", "did not answer in JSON");
        }
        List<String> features = answer.get("features") == null ? null : features(answer.get("features"));
        if (answer.get("passed") instanceof String reason) {
            return new Answer(reason.substring(0, Math.min(reason.length(), 64)), null, features);
        }
        List<?> ids = list(answer, "ids", sent.size());
        List<?> scores = list(answer, "scores", sent.size());
        List<?> signals = answer.get("signals") == null ? null : list(answer, "signals", sent.size());
        Map<String, Integer> positions = new HashMap<>();
        sent.forEach(id -> positions.put(id, positions.size()));
        List<Hit> hits = new ArrayList<>(sent.size());
        for (int i = 0; i < sent.size(); i++) {
            Integer position = positions.remove(ids.get(i)); // no id was sent twice, so this finds each or fails
            float score = scores.get(i) instanceof Number number ? number.floatValue() : Float.NaN;
            if (position == null || Float.isFinite(score) == false) {
                throw new Failure("bad_answer", "answered an id twice, an unknown id, or a score that is no finite number");
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

    /** Anything else than a plain name could be a pattern, or lead into other fields. */
    private static List<String> features(Object wanted) {
        if (wanted instanceof List<?> list && list.size() <= 32
            && list.stream().allMatch(name -> name instanceof String text && text.matches("[^*?,.\\s]{1,200}"))) {
            return list.stream().map(String.class::cast).distinct().toList();
        }
        throw new Failure("bad_answer", "wants features that cannot be");
    }
}
