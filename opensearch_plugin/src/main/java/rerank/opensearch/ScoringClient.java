package rerank.opensearch;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.ConnectException;
import java.net.HttpURLConnection;
import java.net.Proxy;
import java.net.SocketTimeoutException;
import java.net.UnknownHostException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.opensearch.core.action.ActionListener;
import org.opensearch.threadpool.Scheduler;

/** The rerank service of one pipeline, with a limit of concurrent calls. */
final class ScoringClient {
    private final Config config;
    private final boolean isAllowed;
    private final RerankPlugin plugin;
    private final BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler;
    private final Semaphore calls;
    private final CircuitBreaker breaker;

    /** isAllowed: whether the node may call the URL. */
    ScoringClient(Config config, boolean isAllowed, RerankPlugin plugin,
                  BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler) {
        this.config = config;
        this.isAllowed = isAllowed;
        this.plugin = plugin;
        this.scheduler = scheduler;
        this.calls = new Semaphore(config.maxConnections());
        this.breaker = new CircuitBreaker(config, plugin.stats);
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
        return isAllowed == false ? "not_allowed" : breaker.isOpen() ? "breaker_open" : null;
    }

    /** A body for a path of the service. timeout: in milliseconds. longQuery: its failure is not counted. */
    record Request(String path, byte[] body, int timeout, int maxAnswer, boolean longQuery) {
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
        if (breaker.admit() == false) {
            calls.release();
            done.onFailure(new Failure("breaker_open", "failed too often"));
            return () -> { };
        }
        Call<T> call = new Call<>(request, done);
        call.timer = scheduler.apply((long) request.timeout(), () -> plugin.pool.execute(call::timeOut));
        plugin.pool.execute(() -> call.run(read));
        return () -> plugin.pool.execute(call::cancel);
    }

    /** After so many milliseconds. */
    Scheduler.ScheduledCancellable after(long milliseconds, Runnable then) {
        return scheduler.apply(milliseconds, () -> plugin.pool.execute(then));
    }

    /**
     * One call. The search gets its result at the timeout at the latest. The thread of the call ends with the next byte after
     * that, or when no byte comes for the time of one more timeout.
     */
    private final class Call<T> {
        private final Request request;
        private final ActionListener<T> done;
        private final long start = System.nanoTime();
        private final AtomicBoolean isEnded = new AtomicBoolean();
        private volatile boolean isLate;
        private volatile HttpURLConnection connection;
        private volatile Scheduler.ScheduledCancellable timer;

        Call(Request request, ActionListener<T> done) {
            this.request = request;
            this.done = done;
        }

        void run(Function<byte[], T> read) {
            T result = null;
            Failure failure = null;
            try {
                result = read.apply(post());
            } catch (Throwable e) {
                failure = failure(e, request.timeout());
            }
            timer.cancel();
            calls.release();
            end(result, failure);
        }

        /** End the search. Closing a connection can wait for a byte of its answer, so this comes last. */
        void timeOut() {
            isLate = true;
            end(null, failure(new SocketTimeoutException(), request.timeout()));
            disconnect();
        }

        /** The search has ended: nobody waits for the result. */
        void cancel() {
            if (isEnded.compareAndSet(false, true)) {
                isLate = true;
                done.onFailure(new Failure("cancelled", "is no longer waited for"));
                disconnect();
            }
        }

        private void disconnect() {
            HttpURLConnection waiting = connection;
            if (waiting != null) {
                waiting.disconnect();
            }
        }

        private void end(T result, Failure failure) {
            if (isEnded.compareAndSet(false, true) == false) {
                return;
            }
            boolean isOlderService = request.isScoring() == false && failure != null && failure.reason.equals("status_404");
            if (isOlderService == false) {
                breaker.count(failure, request.longQuery());
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

        /**
         * Post a body and wait for the answer. A call on one thread is faster than HttpClient, which wakes four. The JDK keeps
         * idle connections, and sends again if the service has closed one.
         */
        private byte[] post() throws IOException {
            HttpURLConnection call = (HttpURLConnection) config.url(request.path()).toURL().openConnection(Proxy.NO_PROXY);
            connection = call;
            call.setInstanceFollowRedirects(false);
            call.setConnectTimeout(request.timeout());
            call.setReadTimeout(request.timeout());
            call.setRequestProperty("Content-Type", request.isScoring() ? "application/octet-stream" : "application/json");
            if (plugin.token != null) {
                call.setRequestProperty("Authorization", "Bearer " + plugin.token);
            }
            call.setDoOutput(true); // buffered, so that head and body are sent together
            call.getOutputStream().write(request.body());
            int status = call.getResponseCode();
            try (InputStream stream = status < 400 ? call.getInputStream() : call.getErrorStream()) {
                byte[] answer = stream == null ? new byte[0] : answer(stream);
                if (status != 200) {
                    throw new Failure("status_" + status, "answered with status " + status + ScoringResponse.refusal(status, answer));
                }
                return answer;
            }
        }

        private byte[] answer(InputStream stream) throws IOException {
            ByteArrayOutputStream answer = new ByteArrayOutputStream(Math.max(stream.available(), 1 << 10));
            byte[] bytes = new byte[1 << 13];
            for (int count = stream.read(bytes); count >= 0; count = stream.read(bytes)) {
                answer.write(bytes, 0, count);
                boolean tooLarge = answer.size() > request.maxAnswer();
                if (isLate || tooLarge) {
                    connection.disconnect(); // the rest is never read
                }
                if (isLate) {
                    throw new SocketTimeoutException();
                }
                if (tooLarge) {
                    throw new Failure("too_large", "answered too many bytes");
                }
            }
            return answer.toByteArray();
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
