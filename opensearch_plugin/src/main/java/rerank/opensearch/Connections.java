package rerank.opensearch;

import java.io.Closeable;
import java.net.URI;
import java.util.Deque;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.TimeUnit;

/** A node's connections that nobody uses now, by URL: those used last are used first, so that the others grow old. */
final class Connections implements Closeable {
    /** Shorter than services and proxies keep them. */
    static final long PATIENCE = TimeUnit.SECONDS.toNanos(30);
    private final Map<URI, Deque<Connection>> idle = new ConcurrentHashMap<>();
    private volatile boolean closed;

    /** One that was used before and is still good, as far as can be seen; or null. */
    Connection take(URI url) {
        Deque<Connection> those = idle.get(url);
        for (Connection one = those == null ? null : those.pollFirst(); one != null; one = those.pollFirst()) {
            if (isYoung(one) && one.isQuiet()) {
                return one;
            }
            one.close();
        }
        return null;
    }

    void give(URI url, Connection one) {
        one.idleSince = System.nanoTime();
        idle.computeIfAbsent(url, key -> new ConcurrentLinkedDeque<>()).addFirst(one);
        if (closed) {
            close();
        }
    }

    /** Close those that were not used for a while. */
    void tidy() {
        for (Deque<Connection> those : idle.values()) {
            for (Connection one = those.pollLast(); one != null; one = those.pollLast()) {
                if (isYoung(one)) {
                    those.addLast(one);
                    break;
                }
                one.close();
            }
        }
    }

    private static boolean isYoung(Connection one) {
        return System.nanoTime() - one.idleSince < PATIENCE;
    }

    @Override
    public void close() {
        closed = true;
        idle.values().forEach(those -> {
            for (Connection one = those.pollFirst(); one != null; one = those.pollFirst()) {
                one.close();
            }
        });
    }
}
