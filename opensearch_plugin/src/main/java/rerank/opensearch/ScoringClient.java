package rerank.opensearch;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.opensearch.core.action.ActionListener;
import org.opensearch.threadpool.Scheduler;

/** The rerank service of one pipeline: its URLs, tried in turn, and a limit of concurrent calls. */
final class ScoringClient {
    private final Config config;
    private final RerankPlugin plugin;
    private final BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler;
    private final Semaphore calls;
    private final List<CircuitBreaker> targets;

    /** urls: the ones in the configuration that the node may call. */
    ScoringClient(Config config, List<URI> urls, RerankPlugin plugin, BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler) {
        this.config = config;
        this.plugin = plugin;
        this.scheduler = scheduler;
        this.calls = new Semaphore(config.maxConnections());
        this.targets = urls.stream().map(url -> new CircuitBreaker(url, config, plugin.stats)).toList();
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

    /** The call of one search. longQuery: its failure is not counted. */
    record Call<T>(byte[] body, int maxAnswer, boolean longQuery, Function<byte[], T> read, ActionListener<T> done, long start) { }

    /** Why no call is sent now, or null. */
    String unreachable() {
        return targets.isEmpty() ? "not_allowed" : targets.stream().allMatch(CircuitBreaker::isOpen) ? "breaker_open" : null;
    }

    /** Post a body; {@code done} gets the result of {@code read}, or a Failure, on a thread of the plugin's pool. */
    <T> void call(byte[] body, int maxAnswer, boolean longQuery, Function<byte[], T> read, ActionListener<T> done) {
        if (calls.tryAcquire() == false) {
            done.onFailure(new Failure("busy", "is busy"));
            return;
        }
        attempt(0, new Call<>(body, maxAnswer, longQuery, read, done, System.nanoTime()), new Failure("breaker_open", "failed too often"));
    }

    /** Call the first target at or after a position that accepts calls. */
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
            } catch (Throwable e) { // also an Error, or the search would not end
                failure = new Failure("error", "could not be understood: " + e);
            }
            target.count(failure, call.longQuery);
            if (failure == null || CircuitBreaker.blamesTheSearch(failure) || place + 1 == targets.size() || isOver(call)) {
                end(call, result, failure);
            } else {
                attempt(place + 1, call, failure);
            }
        });
    }

    private boolean isOver(Call<?> call) {
        return System.nanoTime() - call.start >= TimeUnit.MILLISECONDS.toNanos(config.timeout());
    }

    private <T> void end(Call<T> call, T result, Failure failure) {
        calls.release();
        plugin.stats.called(System.nanoTime() - call.start);
        if (failure == null) {
            call.done.onResponse(result);
        } else {
            call.done.onFailure(failure);
        }
    }

    /** Post a body; {@code then} gets the answer or the failure, once, on a thread of the plugin's pool. */
    private void send(URI url, byte[] body, int most, long millis, BiConsumer<byte[], Failure> then) {
        try {
            long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
            HttpRequest.Builder request = HttpRequest.newBuilder(url).header("Content-Type", "application/octet-stream")
                .POST(HttpRequest.BodyPublishers.ofByteArray(body));
            String token = plugin.token(config.token());
            if (token != null) {
                request.header("Authorization", "Bearer " + token);
            }
            post(request.build(), most, until, true, then);
        } catch (RuntimeException e) {
            plugin.pool.execute(() -> then.accept(null, failure(e)));
        }
    }

    /** again: repeat the call if its connection breaks: the service may have closed an idle connection. */
    private void post(HttpRequest request, int most, long until, boolean again, BiConsumer<byte[], Failure> then) {
        CompletableFuture<HttpResponse<byte[]>> sent = plugin.http.sendAsync(request, info -> limitedBody(most));
        long left = TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime());
        Scheduler.ScheduledCancellable timer =
            scheduler.apply(Math.max(left, 1), () -> plugin.pool.execute(() -> sent.cancel(true)));
        sent.whenCompleteAsync((response, error) -> {
            timer.cancel();
            Throwable cause = error instanceof CompletionException ? error.getCause() : error;
            boolean broken = cause instanceof IOException && cause instanceof ConnectException == false;
            if (again && broken && System.nanoTime() < until) {
                post(request, most, until, false, then);
            } else if (cause != null) {
                then.accept(null, failure(cause));
            } else if (response.statusCode() != 200) {
                int status = response.statusCode();
                String refusal = ScoringResponse.refusal(status, response.body());
                then.accept(null, new Failure("status_" + status, "answered with status " + status + refusal));
            } else {
                then.accept(response.body(), null);
            }
        }, plugin.pool);
    }

    private Failure failure(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof Failure known) {
                return known;
            }
        }
        return switch (error) {
            case CancellationException e -> new Failure("timeout", "did not answer in " + config.timeout() + " ms");
            case ConnectException e -> new Failure("refused", "cannot be reached: " + e.getMessage());
            case IOException e -> new Failure("connection", "broke the connection: " + e.getMessage());
            default -> new Failure("error", "could not be called: " + error);
        };
    }

    /** The body of an answer; a longer one is a failure. */
    private static HttpResponse.BodySubscriber<byte[]> limitedBody(int most) {
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        return HttpResponse.BodySubscribers.mapping(HttpResponse.BodySubscribers.ofByteArrayConsumer(part -> {
            part.ifPresent(body::writeBytes);
            if (body.size() > most) {
                throw new Failure("too_large", "answered too many bytes");
            }
        }), read -> body.toByteArray());
    }
}
