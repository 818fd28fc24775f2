package rerank.opensearch;

import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAccumulator;
import java.util.concurrent.atomic.LongAdder;

/** Outcomes of the searches that this node has coordinated since its start. */
final class Stats {
    private static final int REASONS = 100; // the service can return more reasons

    final LongAdder reranked = new LongAdder(), removed = new LongAdder(), breakerOpened = new LongAdder();
    private final Map<String, LongAdder> passed = new ConcurrentHashMap<>(), failed = new ConcurrentHashMap<>();
    private final LongAdder calls = new LongAdder(), nanos = new LongAdder();
    private final LongAdder shadowed = new LongAdder(), moved = new LongAdder(), shadowNanos = new LongAdder();
    private final LongAdder retrieved = new LongAdder(), added = new LongAdder(), addedNanos = new LongAdder();
    private final Map<String, LongAdder> notAdded = new ConcurrentHashMap<>();
    private final LongAccumulator slowest = new LongAccumulator(Math::max, 0);

    void called(long took) {
        calls.increment();
        nanos.add(took);
        slowest.accumulate(took);
    }

    /** A search was scored and kept its order. ofTen: how many of its first ten hits would move. */
    void shadowed(long ofTen, long took) {
        shadowNanos.add(shadowed.sum() > 0 ? took : 0); // the first search has no features yet, and is slower
        shadowed.increment();
        moved.add(ofTen);
    }

    /** A search through a pipeline that retrieves. documents: added to its candidates. reason: why none was, or null. */
    void retrieved(int documents, String reason, long took) {
        retrieved.increment();
        added.add(documents);
        addedNanos.add(took);
        if (reason != null) {
            notAdded.computeIfAbsent(reason, r -> new LongAdder()).increment();
        }
    }

    /** outcome: reranked, passed or failed; the last two have a reason. */
    void count(String outcome, String reason) {
        Map<String, LongAdder> counters = outcome.equals("passed") ? passed : failed;
        String counted = reason == null || counters.containsKey(reason) || counters.size() < REASONS ? reason : "other";
        (counted == null ? reranked : counters.computeIfAbsent(counted, r -> new LongAdder())).increment();
    }

    Map<String, Object> read(String node) {
        Map<String, Long> passes = new TreeMap<>(), failures = new TreeMap<>(), none = new TreeMap<>();
        notAdded.forEach((reason, counter) -> none.put(reason, counter.sum()));
        passed.forEach((reason, counter) -> passes.put(reason, counter.sum()));
        failed.forEach((reason, counter) -> failures.put(reason, counter.sum()));
        return new TreeMap<>(Map.of("node", node, "reranked", reranked.sum(), "removed", removed.sum(),
            "passed", passes, "failed", failures, "breaker_opened", breakerOpened.sum(),
            "added", Map.of("searches", retrieved.sum(), "documents", added.sum(), "total_ms", addedNanos.sum() / 1e6, "none", none),
            "shadow", Map.of("count", shadowed.sum(), "moved", moved.sum(), "total_ms", shadowNanos.sum() / 1e6),
            "calls", Map.of("count", calls.sum(), "total_ms", nanos.sum() / 1e6, "max_ms", slowest.get() / 1e6)));
    }
}
