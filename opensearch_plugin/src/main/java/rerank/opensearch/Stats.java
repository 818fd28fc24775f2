package rerank.opensearch;

import java.time.Instant;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAccumulator;
import java.util.concurrent.atomic.LongAdder;

/** Outcomes of the searches that this node has coordinated since its start. */
final class Stats {
    private static final int REASONS = 100; // the service has other reasons

    final LongAdder reranked = new LongAdder(), breakerOpened = new LongAdder();
    private final Map<String, LongAdder> passed = new ConcurrentHashMap<>(), failed = new ConcurrentHashMap<>();
    private final LongAdder calls = new LongAdder(), nanos = new LongAdder();
    private final LongAdder shadowed = new LongAdder(), moved = new LongAdder(), shadowNanos = new LongAdder();
    private final LongAccumulator firstShadow = new LongAccumulator(Math::min, Long.MAX_VALUE), lastShadow = new LongAccumulator(Math::max, 0);
    private final LongAccumulator slowest = new LongAccumulator(Math::max, 0);

    void called(long took) {
        calls.increment();
        nanos.add(took);
        slowest.accumulate(took);
    }

    /** A search was scored and kept its order. ofTen: how many of its first ten hits would move. */
    void shadowed(int ofTen, long took) {
        if (shadowed.sum() > 0) { // the first search has no features yet, and is slower
            shadowNanos.add(took);
        }
        shadowed.increment();
        moved.add(ofTen);
        firstShadow.accumulate(System.currentTimeMillis());
        lastShadow.accumulate(System.currentTimeMillis());
    }

    /** outcome: reranked, passed or failed; the last two have a reason. */
    void count(String outcome, String reason) {
        Map<String, LongAdder> counters = outcome.equals("passed") ? passed : failed;
        String kept = reason == null || counters.containsKey(reason) || counters.size() < REASONS ? reason : "other";
        (kept == null ? reranked : counters.computeIfAbsent(kept, r -> new LongAdder())).increment();
    }

    Map<String, Object> read(String node) {
        Map<String, Long> passes = new TreeMap<>(), failures = new TreeMap<>();
        passed.forEach((reason, counter) -> passes.put(reason, counter.sum()));
        failed.forEach((reason, counter) -> failures.put(reason, counter.sum()));
        return new TreeMap<>(Map.of("node", node, "reranked", reranked.sum(),
            "passed", passes, "failed", failures, "breaker_opened", breakerOpened.sum(),
            "shadow", shadow(),
            "calls", Map.of("count", calls.sum(), "total_ms", nanos.sum() / 1e6, "max_ms", slowest.get() / 1e6)));
    }

    /** first, last: time of the first and of the last of these searches, in UTC. total_ms: of all but the first. */
    private Map<String, Object> shadow() {
        long count = shadowed.sum();
        Map<String, Object> shadow = new TreeMap<>(Map.of("count", count, "moved", moved.sum(), "total_ms", shadowNanos.sum() / 1e6));
        if (count > 0) {
            shadow.put("first", Instant.ofEpochMilli(firstShadow.get()).toString());
            shadow.put("last", Instant.ofEpochMilli(lastShadow.get()).toString());
        }
        return shadow;
    }
}
