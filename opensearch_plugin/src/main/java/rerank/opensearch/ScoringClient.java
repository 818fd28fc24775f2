package rerank.opensearch;

import java.io.IOException;
import java.net.ConnectException;
import java.net.SocketTimeoutException;
import java.net.URI;
import java.net.UnknownHostException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.opensearch.core.action.ActionListener;
import org.opensearch.threadpool.Scheduler;

/**
 * The rerank services of one pipeline, with a limit of concurrent calls. They take turns. A call that one of them cannot answer
 * is sent to the next one, within the time limit of the call.
 */
final class ScoringClient {
    /** Failures after which another service may answer. Others come from the call, or show a wrong setting. */
    private static final Set<String> RETRIED = Set.of("refused", "connection", "timeout", "status_429", "status_502", "status_503",
        "status_504");

    private final boolean isAllowed;
    private final RerankPlugin plugin;
    private final BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler;
    private final Semaphore calls;
    private final List<ServiceEndpoint> endpoints;
    private final AtomicInteger turns = new AtomicInteger();

    /** isAllowed: whether the node may call the URLs. */
    ScoringClient(Config config, boolean isAllowed, RerankPlugin plugin,
                  BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler) {
        this.isAllowed = isAllowed;
        this.plugin = plugin;
        this.scheduler = scheduler;
        this.calls = new Semaphore(config.maxConnections());
        this.endpoints = config.urls().stream().map(url -> new ServiceEndpoint(url, config, plugin.stats, scheduler)).toList();
    }

    /** A search could not be reranked. reason: the name of its counter. */
    static final class Failure extends RuntimeException {
        private static final long serialVersionUID = 1;
        final String reason;

        Failure(String reason, String message) {
            super(message, null, false, false); // no stack trace: there is one for every search
            this.reason = reason;
        }

        static Failure of(Exception e) {
            return e instanceof Failure known ? known : new Failure("error", e.toString());
        }
    }

    /** Why no call is sent now, or null. */
    String unreachable() {
        boolean isOpen = endpoints.stream().allMatch(endpoint -> endpoint.breaker.isOpen());
        return isAllowed == false ? "not_allowed" : isOpen ? "breaker_open" : null;
    }

    /** Milliseconds that the first service of a call has, of its time limit: the service plans its work with them. */
    int firstLimit(int timeout) {
        long usable = endpoints.stream().filter(endpoint -> endpoint.breaker.isOpen() == false).count();
        return Math.max(usable > 1 ? timeout / 2 : timeout, 1);
    }

    /** The position of the service that a search asks first. */
    int nextTurn() {
        return Math.floorMod(turns.getAndIncrement(), endpoints.size());
    }

    /**
     * A body for a path of the service. turn: position of the service that is asked first. timeout: in milliseconds. longQuery: its
     * failure is not counted.
     */
    record Request(String path, byte[] body, int turn, int timeout, int maxAnswer, boolean longQuery) {
        boolean isScoring() {
            return path.equals(Protocol.PATH);
        }
    }

    /**
     * Post a body; {@code done} gets the result of {@code read}, or a Failure, on a thread of the plugin's pool. Returns what
     * ends the call without a result.
     */
    <T> Runnable call(Request request, Function<byte[], T> read, ActionListener<T> done) {
        if (calls.tryAcquire() == false) {
            done.onFailure(new Failure("busy", "is busy"));
            return () -> { };
        }
        Call<T> call = new Call<>(request, done);
        if (call.chooseNext() == false) {
            calls.release();
            done.onFailure(new Failure("breaker_open", "failed too often"));
            return () -> { };
        }
        call.timer = scheduler.apply((long) request.timeout(), () -> plugin.pool.execute(call::timeOut));
        plugin.pool.execute(() -> call.run(read));
        return () -> plugin.pool.execute(call::cancel);
    }

    /** After so many milliseconds. */
    Scheduler.ScheduledCancellable after(long milliseconds, Runnable then) {
        return scheduler.apply(milliseconds, () -> plugin.pool.execute(then));
    }

    /** One call. The search gets its result at the timeout at the latest; then the connection is closed. */
    private final class Call<T> {
        private final Request request;
        private final ActionListener<T> done;
        private final long start = System.nanoTime();
        private final AtomicBoolean isEnded = new AtomicBoolean();
        private final Deque<ServiceEndpoint> waiting = new ArrayDeque<>(); // services that were not asked yet
        private volatile ServiceEndpoint endpoint; // the service that is asked
        private long due; // when this service must have answered, by System.nanoTime()
        private volatile boolean isLate; // nobody waits for the answer
        private HttpConnection current; // the connection in use, or null
        private volatile Scheduler.ScheduledCancellable timer;

        Call(Request request, ActionListener<T> done) {
            this.request = request;
            this.done = done;
            for (int i = 0; i < endpoints.size(); i++) {
                waiting.add(endpoints.get((request.turn() + i) % endpoints.size()));
            }
        }

        /** Choose the next service whose circuit breaker admits the call. Returns whether there is one. */
        boolean chooseNext() {
            while (waiting.isEmpty() == false) {
                ServiceEndpoint next = waiting.poll();
                if (next.breaker.admit()) {
                    endpoint = next;
                    return true;
                }
            }
            return false;
        }

        void run(Function<byte[], T> read) {
            T result = null;
            Failure failure;
            do {
                int limit = limit();
                due = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(limit);
                ServiceEndpoint asked = endpoint;
                // The last service has until the end of the call. A read has a limit, but a write has none.
                Scheduler.ScheduledCancellable limitTimer = waiting.isEmpty() ? timer : after(limit, () -> disconnect(asked));
                failure = null;
                try {
                    result = read.apply(post(limit));
                } catch (Throwable e) {
                    failure = failure(e, limit);
                }
                limitTimer.cancel();
            } while (failure != null && isRetried(failure));
            timer.cancel();
            calls.release();
            end(result, failure);
        }

        /** Whether another service is asked after this failure, which is counted. */
        private boolean isRetried(Failure failure) {
            ServiceEndpoint failed = endpoint;
            boolean hasTime = isEnded.get() == false && isEnough(remaining());
            boolean isNext = hasTime && RETRIED.contains(failure.reason) && chooseNext();
            if (isNext) {
                failed.breaker.count(failure, request.longQuery());
            }
            return isNext;
        }

        /** Milliseconds of the time limit that are left. */
        private int remaining() {
            return request.timeout() - (int) TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start);
        }

        /** Whether a service can answer in so many milliseconds. Otherwise its failure would show nothing about it. */
        private boolean isEnough(int milliseconds) {
            return milliseconds >= Math.max(request.timeout() / 10, 1);
        }

        /** Milliseconds for one service: half of the remaining time if another one can be asked after it. */
        private int limit() {
            int remaining = remaining();
            boolean hasNext = isEnough(remaining / 2) && waiting.stream().anyMatch(next -> next.breaker.isOpen() == false);
            return Math.max(hasNext ? remaining / 2 : remaining, 1);
        }

        /** Whether the answer of the service is no longer waited for. */
        private boolean isOver() {
            return isLate || System.nanoTime() - due >= 0;
        }

        void timeOut() {
            end(null, failure(new SocketTimeoutException(), request.timeout()));
            disconnect();
        }

        /** The search has ended: nobody waits for the result. */
        void cancel() {
            if (isEnded.compareAndSet(false, true)) {
                done.onFailure(new Failure("cancelled", "is no longer waited for"));
                disconnect();
            }
        }

        private void end(T result, Failure failure) {
            if (isEnded.compareAndSet(false, true) == false) {
                return;
            }
            boolean isOlderService = request.isScoring() == false && failure != null && failure.reason.equals("status_404");
            if (isOlderService == false) {
                endpoint.breaker.count(failure, request.longQuery());
            }
            if (request.isScoring()) {
                plugin.stats.called(System.nanoTime() - start);
            }
            if (failure == null) {
                done.onResponse(result);
            } else {
                done.onFailure(failure);
            }
        }

        /** Post the body and wait for the answer. */
        private byte[] post(int limit) throws IOException {
            HttpConnection.Answer answer = send(limit);
            int status = answer.status();
            if (status != 200) {
                throw new Failure("status_" + status, "answered with status " + status + ScoringResponse.refusal(status, answer.body()));
            }
            return answer.body();
        }

        /**
         * A service can close an idle connection at any time, and any connection while it restarts: then the call is sent again,
         * on a new one.
         */
        private HttpConnection.Answer send(int limit) throws IOException {
            HttpConnection idle = endpoint.connections.take();
            try {
                return idle == null ? send(new HttpConnection(), false, limit) : send(idle, true, limit);
            } catch (HttpConnection.ClosedException e) {
                return send(new HttpConnection(), false, limit);
            }
        }

        private HttpConnection.Answer send(HttpConnection connection, boolean isOpen, int limit) throws IOException {
            use(connection);
            try {
                URI url = endpoint.url(request.path());
                if (isOpen == false) {
                    connection.open(url, limit);
                }
                HttpConnection.Answer answer = connection.post(url, headers(), request.body(), limit, request.maxAnswer());
                release();
                endpoint.connections.give(connection); // it is not kept if the end of the search has closed it
                return answer;
            } catch (IOException e) {
                connection.close();
                throw isOver() ? new SocketTimeoutException() : e;
            } catch (RuntimeException | Error e) {
                connection.close();
                throw e;
            }
        }

        private String headers() {
            String type = request.isScoring() ? "application/octet-stream" : "application/json";
            String token = plugin.token;
            if (token != null && token.chars().anyMatch(Character::isISOControl)) {
                throw new Failure("error", "cannot be called: the token has control characters");
            }
            return "Content-Type: " + type + "\r\n" + (token == null ? "" : "Authorization: Bearer " + token + "\r\n");
        }

        /** From now on, the end of the search, and of the limit of the service, closes this connection. */
        private synchronized void use(HttpConnection connection) throws IOException {
            if (isOver()) {
                connection.close();
                throw new SocketTimeoutException();
            }
            current = connection;
        }

        /** From now on, nothing closes the connection: another call may use it. */
        private synchronized void release() {
            current = null;
        }

        /** The limit of a service is over, if the call still waits for it. */
        private synchronized void disconnect(ServiceEndpoint asked) {
            if (endpoint == asked && current != null) {
                current.close();
            }
        }

        /** Nobody waits for the answer. */
        private synchronized void disconnect() {
            isLate = true;
            if (current != null) {
                current.close();
            }
        }
    }

    private static Failure failure(Throwable error, int timeout) {
        return switch (error) {
            case Failure known -> known;
            case SocketTimeoutException e -> new Failure("timeout", "did not answer in " + timeout + " ms");
            case ConnectException e -> new Failure("refused", "cannot be reached: " + e.getMessage());
            case UnknownHostException e -> new Failure("refused", "cannot be reached: unknown host " + e.getMessage());
            case IOException e -> new Failure("connection", "broke the connection: " + e.getMessage());
            case Throwable e -> new Failure("error", "could not be called, or its answer could not be understood: " + e);
        };
    }
}
