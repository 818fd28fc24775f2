package rerank.opensearch;

import java.io.IOException;
import java.net.ConnectException;
import java.net.SocketTimeoutException;
import java.net.URI;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BiConsumer;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.opensearch.core.action.ActionListener;
import org.opensearch.threadpool.Scheduler;

/** The rerank service as one pipeline sees it: its URLs, tried in turn, and how many calls it gets at once. */
final class ScoringClient {
    private static final int LONGEST_ANSWER = 1 << 25; // to a search of the greatest depth
    private final Config config;
    private final RerankPlugin plugin;
    private final BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler;
    private final Semaphore connections;
    private final List<CircuitBreaker> targets;

    /** urls: those of the configuration that the node may call. */
    ScoringClient(Config config, List<URI> urls, RerankPlugin plugin, BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler) {
        this.config = config;
        this.plugin = plugin;
        this.scheduler = scheduler;
        this.connections = new Semaphore(config.maxConnections());
        this.targets = urls.stream().map(url -> new CircuitBreaker(url, config, plugin.stats)).toList();
    }

    /** A search could not be reranked. reason: the name of its counter. */
    static final class Failure extends RuntimeException {
        private static final long serialVersionUID = 1;
        final String reason;

        Failure(String reason, String message) {
            super(message, null, false, false); // one for every search while the service is down: no stack trace
            this.reason = reason;
        }

        static Failure of(Exception e) {
            return e instanceof Failure known ? known : new Failure("error", e.toString());
        }
    }

    /** One search's call. longQuery: of so many words that its failure says nothing of the service. */
    record Call<T>(byte[] body, int maxAnswer, boolean longQuery, Function<byte[], T> read, ActionListener<T> done, long start) { }

    /** Why no search is sent at all now; null: they are. */
    String unreachable() {
        return targets.isEmpty() ? "not_allowed" : targets.stream().allMatch(CircuitBreaker::isOpen) ? "breaker_open" : null;
    }

    /** Post a body; {@code done} gets what {@code read} makes of the answer, or a Failure, on a thread of the plugin's pool. */
    <T> void call(byte[] body, int maxAnswer, boolean longQuery, Function<byte[], T> read, ActionListener<T> done) {
        if (connections.tryAcquire() == false) {
            done.onFailure(new Failure("busy", "is busy"));
            return;
        }
        attempt(0, new Call<>(body, maxAnswer, longQuery, read, done, System.nanoTime()), new Failure("breaker_open", "failed too often"));
    }

    /** Ask the first target from a place on that may be asked. */
    private <T> void attempt(int from, Call<T> call, Failure before) {
        int i = from;
        while (i < targets.size() && targets.get(i).admit() == false) {
            i++;
        }
        if (i == targets.size()) {
            end(call, null, before);
            return;
        }
        int place = i;
        CircuitBreaker target = targets.get(place);
        boolean another = targets.stream().skip(place + 1).anyMatch(later -> later.isSick() == false);
        long left = config.timeout() - TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - call.start);
        send(target.url, call.body, call.maxAnswer, another ? left / 2 : left, (bytes, broken) -> {
            T result = null;
            Failure failure = broken;
            try {
                result = failure == null ? call.read.apply(bytes) : null;
            } catch (Failure e) {
                failure = e;
            } catch (Throwable e) { // an Error, too: nobody would hear of it, and the search would hang
                failure = new Failure("error", "could not be understood: " + e);
            }
            byte[] proof = target.judge(failure, call.body, call.longQuery);
            if (proof != null) {
                prove(target, proof);
            }
            if (failure == null || CircuitBreaker.blamesTheSearch(failure) || place + 1 == targets.size() || isOver(call)) {
                end(call, result, failure);
            } else {
                attempt(place + 1, call, failure);
            }
        });
    }

    /** Send a call once more that went well before: the failures of others were their own where it does so again. */
    private void prove(CircuitBreaker target, byte[] body) {
        send(target.url, body, LONGEST_ANSWER, config.timeout(), (bytes, broken) -> target.proved(broken));
    }

    private boolean isOver(Call<?> call) {
        return System.nanoTime() - call.start >= TimeUnit.MILLISECONDS.toNanos(config.timeout());
    }

    private <T> void end(Call<T> call, T result, Failure failure) {
        connections.release();
        plugin.stats.called(System.nanoTime() - call.start);
        if (failure == null) {
            call.done.onResponse(result);
        } else {
            call.done.onFailure(failure);
        }
    }

    /** Post a body; {@code then} hears of the answer or the failure, once, on a thread of the plugin's pool. */
    private void send(URI url, byte[] body, int most, long millis, BiConsumer<byte[], Failure> then) {
        Sent sent = new Sent(url, body, most, System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis), then);
        try {
            // A write may hang as well as a read, and so may looking up a name.
            sent.timer = scheduler.apply(Math.max(millis, 1), () -> plugin.pool.execute(sent::expire));
            plugin.pool.execute(sent);
        } catch (RuntimeException e) { // the node stops
            sent.end(null, failure(e));
        }
    }

    /** One body on its way. A thread of the pool waits for its answer, and goes on with it: every change of threads takes time. */
    private final class Sent implements Runnable {
        private final URI url;
        private final byte[] body;
        private final int most;
        private final long until;
        private final BiConsumer<byte[], Failure> then;
        private final AtomicBoolean over = new AtomicBoolean();
        private Connection used; // by this call: nobody else's to close
        private Scheduler.ScheduledCancellable timer;

        private Sent(URI url, byte[] body, int most, long until, BiConsumer<byte[], Failure> then) {
            this.url = url;
            this.body = body;
            this.most = most;
            this.until = until;
            this.then = then;
        }

        @Override
        public void run() {
            byte[] answer = null;
            Failure failure = null;
            try {
                Connection kept = plugin.connections.take(url);
                try {
                    answer = post(kept == null ? new Connection(url) : kept, kept == null);
                } catch (ConnectException e) {
                    throw e;
                } catch (IOException e) {
                    // That the service has closed an idle connection may only show now, so what breaks is sent once more.
                    answer = post(new Connection(url), true);
                }
            } catch (IOException | RuntimeException | Error e) { // an Error, too, for else the search would hang
                failure = failure(e);
            }
            end(answer, failure);
        }

        private byte[] post(Connection connection, boolean fresh) throws IOException {
            if (use(connection) == false) {
                connection.close();
                throw new IOException("too late");
            }
            try {
                if (fresh) {
                    connection.open(TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime()));
                }
                return connection.post(body, plugin.token(config.token()), most);
            } finally {
                boolean mine = leave(connection);
                if (mine && connection.isOpen()) {
                    plugin.connections.give(url, connection);
                } else {
                    connection.close();
                }
            }
        }

        private synchronized boolean use(Connection connection) {
            used = over.get() ? null : connection;
            return used != null;
        }

        private synchronized boolean leave(Connection connection) {
            boolean mine = used == connection;
            used = null;
            return mine;
        }

        private void expire() {
            if (over.compareAndSet(false, true)) {
                synchronized (this) {
                    if (used != null) {
                        used.close();
                        used = null;
                    }
                }
                then.accept(null, new Failure("timeout", "did not answer in " + config.timeout() + " ms"));
            }
        }

        private void end(byte[] answer, Failure failure) {
            if (over.compareAndSet(false, true)) {
                if (timer != null) {
                    timer.cancel();
                }
                then.accept(answer, failure);
            }
        }
    }

    private static Failure failure(Throwable error) {
        return switch (error) {
            case Failure known -> known;
            case ConnectException e when e.getCause() instanceof SocketTimeoutException -> new Failure("timeout", "cannot be reached in time");
            case ConnectException e -> new Failure("refused", "cannot be reached: " + e.getMessage());
            case IOException e -> new Failure("connection", "broke the connection: " + e.getMessage());
            default -> new Failure("error", "could not be called: " + error);
        };
    }
}
