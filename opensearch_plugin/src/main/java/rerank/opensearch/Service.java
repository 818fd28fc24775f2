package rerank.opensearch;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.concurrent.*;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.opensearch.core.action.ActionListener;
import org.opensearch.threadpool.Scheduler;

/** The rerank service as one pipeline sees it: its URLs, tried in turn, and how many calls it gets at once. */
final class Service {
    private static final int LONGEST_ANSWER = 1 << 25; // to a search of the greatest depth
    private final Config config;
    private final RerankPlugin plugin;
    private final BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler;
    private final Semaphore connections;
    private final List<Target> targets;

    /** urls: those of the configuration that the node may call. */
    Service(Config config, List<URI> urls, RerankPlugin plugin, BiFunction<Long, Runnable, Scheduler.ScheduledCancellable> scheduler) {
        this.config = config;
        this.plugin = plugin;
        this.scheduler = scheduler;
        this.connections = new Semaphore(config.maxConnections());
        this.targets = urls.stream().map(url -> new Target(url, config, plugin.stats)).toList();
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
        return targets.isEmpty() ? "not_allowed" : targets.stream().allMatch(Target::isOpen) ? "breaker_open" : null;
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
        Target target = targets.get(place);
        boolean another = targets.stream().skip(place + 1).anyMatch(later -> later.isSick() == false);
        long left = config.timeout() - TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - call.start);
        send(target.url, call.body, call.maxAnswer, another ? left / 2 : left).handleAsync((bytes, error) -> {
            T result = null;
            Failure failure = null;
            try {
                if (error != null) {
                    failure = failure(unwrap(error));
                } else {
                    result = call.read.apply(bytes);
                }
            } catch (Failure e) {
                failure = e;
            } catch (Throwable e) { // an Error, too: nobody would hear of it, and the search would hang
                failure = new Failure("error", "could not be understood: " + e);
            }
            byte[] proof = target.judge(failure, call.body, call.longQuery);
            if (proof != null) {
                prove(target, proof);
            }
            if (failure == null || Target.blamesTheSearch(failure) || place + 1 == targets.size() || isOver(call)) {
                end(call, result, failure);
            } else {
                attempt(place + 1, call, failure);
            }
            return null;
        }, plugin.pool); // not the client's one thread, which every connection of the node waits for
    }

    /** Send a call once more that went well before: the failures of others were their own where it does so again. */
    private void prove(Target target, byte[] body) {
        send(target.url, body, LONGEST_ANSWER, config.timeout()).whenCompleteAsync(
            (bytes, error) -> target.proved(error == null ? null : failure(unwrap(error))), plugin.pool);
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

    private CompletableFuture<byte[]> send(URI url, byte[] body, int maxAnswer, long millis) {
        try {
            HttpRequest.Builder request = HttpRequest.newBuilder(url)
                .header("Content-Type", "application/octet-stream").POST(HttpRequest.BodyPublishers.ofByteArray(body));
            String secret = plugin.token(config.token());
            HttpRequest ready = (secret == null ? request : request.header("Authorization", "Bearer " + secret)).build();
            long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
            // That the service has closed an idle connection may only show now, so what breaks is sent once more.
            return send(ready, maxAnswer, until).exceptionallyCompose(
                e -> unwrap(e) instanceof IOException broken && broken instanceof ConnectException == false
                    ? send(ready, maxAnswer, until) : CompletableFuture.failedFuture(e));
        } catch (RuntimeException e) {
            return CompletableFuture.failedFuture(e);
        }
    }

    private CompletableFuture<byte[]> send(HttpRequest request, int maxAnswer, long until) {
        CompletableFuture<HttpResponse<byte[]>> sent = plugin.http.sendAsync(request, info -> limited(maxAnswer));
        // HttpRequest.timeout ends with the headers, but a body may hang, too. Cancelling also closes the connection.
        long left = TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime());
        Scheduler.ScheduledCancellable timer = scheduler.apply(Math.max(left, 1), () -> sent.cancel(true));
        return sent.whenComplete((response, error) -> timer.cancel()).thenApply(response -> {
            if (response.statusCode() != 200) {
                throw new Failure("status_" + response.statusCode(), "answered with status " + response.statusCode());
            }
            return response.body();
        });
    }

    /** A body that is given up when it grows too large (BodyHandlers.limiting is in Java 25 only). */
    private static HttpResponse.BodySubscriber<byte[]> limited(int max) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        return HttpResponse.BodySubscribers.mapping(HttpResponse.BodySubscribers.ofByteArrayConsumer(part -> {
            if (bytes.size() + part.map(p -> p.length).orElse(0) > max) {
                throw new Failure("too_large", "answered more than " + max + " bytes");
            }
            part.ifPresent(bytes::writeBytes);
        }), end -> bytes.toByteArray());
    }

    private Failure failure(Throwable error) {
        return switch (error) {
            case Failure known -> known;
            case CancellationException e -> new Failure("timeout", "did not answer in " + config.timeout() + " ms");
            case ConnectException e -> new Failure("refused", "cannot be reached: " + e.getMessage());
            case IOException e when e.getCause() instanceof Failure known -> known;
            case IOException e -> new Failure("connection", "broke the connection: " + e.getMessage());
            default -> new Failure("error", "could not be called: " + error);
        };
    }

    private static Throwable unwrap(Throwable error) {
        return error instanceof CompletionException && error.getCause() != null ? error.getCause() : error;
    }
}
