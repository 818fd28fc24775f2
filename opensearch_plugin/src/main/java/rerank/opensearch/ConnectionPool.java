package rerank.opensearch;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;
import org.opensearch.threadpool.Scheduler;

/** Idle connections to one service, the last used at the end. They are closed after some time. */
final class ConnectionPool {
    /** Milliseconds: less than servers and the tables of firewalls usually keep idle connections. */
    static final long LONGEST_IDLE = 5_000;

    private final long longestIdle;
    private final BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler;
    private final Deque<HttpConnection> idle = new ArrayDeque<>();
    private boolean isSweepPlanned;

    /** longestIdle: in milliseconds. scheduler: runs a task, which does not block, after so many milliseconds. */
    ConnectionPool(long longestIdle, BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler) {
        this.longestIdle = longestIdle;
        this.scheduler = scheduler;
    }

    /** Take the connection that was used last, or null. */
    HttpConnection take() {
        while (true) {
            HttpConnection connection;
            synchronized (this) {
                connection = idle.pollLast();
            }
            if (connection == null || isUsable(connection)) {
                return connection;
            }
            connection.close();
        }
    }

    private boolean isUsable(HttpConnection connection) {
        return isOld(connection) == false && connection.isQuiet();
    }

    private boolean isOld(HttpConnection connection) {
        return System.nanoTime() - connection.idleSince() >= TimeUnit.MILLISECONDS.toNanos(longestIdle);
    }

    /** Give a connection back after a call. */
    void give(HttpConnection connection) {
        if (connection.isReusable() == false) {
            connection.close();
            return;
        }
        connection.rest(System.nanoTime());
        synchronized (this) {
            idle.addLast(connection);
            planSweep();
        }
    }

    private void planSweep() {
        if (isSweepPlanned == false && idle.isEmpty() == false) {
            isSweepPlanned = true;
            scheduler.apply(longestIdle, this::sweep);
        }
    }

    private synchronized void sweep() {
        isSweepPlanned = false;
        while (idle.isEmpty() == false && isOld(idle.peekFirst())) {
            idle.pollFirst().close();
        }
        planSweep();
    }
}
