package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.util.*;
import java.util.concurrent.*;
import org.junit.jupiter.api.Test;
import org.opensearch.core.action.ActionListener;
import rerank.opensearch.ScoringClient.Failure;

class ScoringClientTest extends ScoringClientTestCase {
    @Test
    void answersAreReadOnThePool() throws Exception {
        Set<String> threads = ConcurrentHashMap.newKeySet();
        String[] found = call(service(Map.of(), server(200, 0)), false, bytes -> {
            threads.add(Thread.currentThread().getName());
            return new String(bytes);
        });
        assertArrayEquals(new String[] {"{}", "our-pool"}, found);
        assertEquals(Set.of("our-pool"), threads);
    }

    @Test
    void callsReuseAConnection() throws Exception {
        ScoringClient service = service(Map.of(), server(200, 0));
        for (int i = 0; i < 5; i++) {
            assertEquals("fine", call(service));
        }
        assertEquals(1, clients.size());
    }

    @Test
    void aLateTimeoutDoesNotCloseAConnectionThatCanBeUsedAgain() throws Exception {
        plugin.pool = Runnable::run;
        List<Runnable> timeouts = new ArrayList<>();
        ScoringClient service = service(Map.of(), server(200, 0), (millis, task) -> {
            timeouts.add(task);
            return CompletableFuture.completedFuture(null);
        });
        assertEquals("fine", call(service));
        timeouts.get(0).run();
        assertEquals("fine", call(service));
        assertEquals(1, clients.size());
    }

    @Test
    void simultaneousCallsReuseTheirConnections() throws Exception {
        CyclicBarrier together = new CyclicBarrier(12); // no call ends before all have begun
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/", exchange -> {
            clients.add(exchange.getRemoteAddress());
            exchange.getRequestBody().readAllBytes();
            try {
                together.await(60, TimeUnit.SECONDS);
            } catch (Exception e) {
                throw new IOException(e);
            }
            exchange.sendResponseHeaders(200, 2);
            exchange.getResponseBody().write("{}".getBytes());
            exchange.close();
        });
        server.start();
        servers.add(server);
        URI url = URI.create("http://127.0.0.1:" + server.getAddress().getPort());
        ScoringClient service = service(Map.of(), url);
        for (int round = 0; round < 3; round++) {
            List<CompletableFuture<String>> calls = new ArrayList<>();
            for (int i = 0; i < 12; i++) {
                CompletableFuture<String> done = new CompletableFuture<>();
                service.call(request(1_000, false), bytes -> "fine", ActionListener.wrap(done::complete, done::completeExceptionally));
                calls.add(done);
            }
            for (CompletableFuture<String> done : calls) {
                assertEquals("fine", done.get(60, TimeUnit.SECONDS));
            }
        }
        assertEquals(12, clients.size());
    }

    @Test
    void failuresComeOnThePool() throws Exception {
        assertArrayEquals(new String[] {"status_500", "our-pool"}, call(service(Map.of(), server(500, 0)), false, bytes -> "fine"));
        assertArrayEquals(new String[] {"timeout", "our-pool"},
            call(service(Map.of("timeout", 50), server(200, 1_000)), false, bytes -> "fine"));
    }

    @Test
    void aSearchAndItsConnectionEndAtTheTimeoutAlthoughBytesCome() throws Exception {
        CompletableFuture<Void> begun = new CompletableFuture<>(), ended = new CompletableFuture<>(), closed = new CompletableFuture<>();
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/", exchange -> {
            exchange.sendResponseHeaders(200, Integer.MAX_VALUE);
            try (exchange) {
                exchange.getResponseBody().write(0);
                exchange.getResponseBody().flush();
                begun.complete(null);
                ended.join();
                while (true) {
                    exchange.getResponseBody().write(0);
                    exchange.getResponseBody().flush();
                }
            } catch (IOException e) { // the client has closed the connection
                closed.complete(null);
            }
        });
        server.start();
        servers.add(server);
        URI url = URI.create("http://127.0.0.1:" + server.getAddress().getPort());
        CompletableFuture<Runnable> timeout = new CompletableFuture<>();
        ScoringClient service = service(Map.of("timeout", 60_000), url, (millis, task) -> {
            timeout.complete(task);
            return timers.schedule(() -> { }, 0, TimeUnit.MILLISECONDS);
        });
        CompletableFuture<String> result = new CompletableFuture<>();
        service.call(request(Integer.MAX_VALUE, false), bytes -> "fine",
            ActionListener.wrap(result::complete, e -> result.complete(((Failure) e).reason)));
        begun.get(60, TimeUnit.SECONDS);
        timeout.get(60, TimeUnit.SECONDS).run();
        assertEquals("timeout", result.get(30, TimeUnit.SECONDS), "the service sends nothing more");
        ended.complete(null);
        closed.get(60, TimeUnit.SECONDS);
    }

    @Test
    void aConnectionThatTheServiceHasClosedIsReplaced() throws Exception {
        ScoringClient service = service(Map.of(), closing(connection -> ANSWER));
        for (int i = 0; i < 5; i++) {
            assertEquals("fine", call(service));
        }
        assertEquals(5, accepted.get());
    }

    @Test
    void aCallWithoutAnAnswerIsSentTwiceAtMost() throws Exception {
        assertEquals("fine", call(service(Map.of(), closing(connection -> connection == 1 ? "" : ANSWER))));
        assertEquals(2, accepted.getAndSet(0));
        assertEquals("connection", call(service(Map.of(), closing(connection -> ""))));
        assertEquals(2, accepted.getAndSet(0));
        String part = ANSWER.substring(0, ANSWER.length() - 1);
        assertEquals("connection", call(service(Map.of(), closing(connection -> part))));
        assertEquals(1, accepted.get(), "a part of an answer has come");
    }

    @Test
    void anAnswerThatStopsEndsAtTheTimeout() throws Exception {
        assertEquals("timeout", call(service(Map.of("timeout", 100), hanging(ANSWER.substring(0, ANSWER.length() - 1)))));
        assertEquals(-1, closed.get(60, TimeUnit.SECONDS));
    }

    @Test
    void theEndOfASearchEndsItsCallAndItsConnection() throws Exception {
        endCall(service(Map.of(), hanging("")));
    }

    @Test
    void aLongAnswerIsAFailure() throws Exception {
        assertEquals("too_large", call(service(Map.of(), server(200, 0)), 1, false, bytes -> "fine")[0]);
    }

    @Test
    void anErrorEndsTheCallAndFreesItsConnection() throws Exception {
        ScoringClient service = service(Map.of("max_connections", 1, "breaker_failures", 100), server(200, 0));
        for (int i = 0; i < 3; i++) {
            assertEquals("error", call(service, false, bytes -> {
                throw new StackOverflowError();
            })[0]);
        }
        assertEquals("fine", call(service));
    }

    @Test
    void anErrorInTheListenerEndsTheSearch() {
        List<String> ends = new ArrayList<>();
        ActionListener<String> search = ActionListener.wrap(answer -> ends.add(answer), e -> ends.add(e.getCause().toString()));
        ActionListener<String> listener = Reranking.ending(search, answer -> {
            throw new StackOverflowError();
        }, e -> search.onResponse("first stage"));
        listener.onResponse("answer");
        Reranking.ending(search, answer -> { }, e -> {
            throw new StackOverflowError();
        }).onFailure(new IOException());
        assertEquals(List.of("first stage", "java.lang.StackOverflowError"), ends);
    }

    @Test
    void aFaultOfOneSearchDoesNotOpenTheBreaker() throws Exception {
        for (int status : List.of(400, 413, 422, 500)) {
            ScoringClient service = service(Map.of(), server(status, 0));
            for (int i = 0; i < 5; i++) {
                assertEquals("status_" + status, call(service));
            }
            assertNull(service.unreachable());
        }
        ScoringClient service = service(Map.of(), server(502, 0));
        for (int i = 0; i < 5; i++) {
            assertEquals("status_502", call(service, true, bytes -> "fine")[0], "a failure of a long query is not counted");
        }
        assertNull(service.unreachable());
    }

    @Test
    void aServiceThatAlwaysFailsIsNotCalled() throws Exception {
        for (int status : List.of(502, 503)) {
            ScoringClient service = service(Map.of(), server(status, 0));
            assertEquals("status_" + status, call(service));
            assertNull(service.unreachable());
            assertEquals("status_" + status, call(service));
            assertEquals("breaker_open", service.unreachable());
            assertEquals("breaker_open", call(service));
        }
    }

    @Test
    void aUrlThatIsNotAllowedIsNotCalled() {
        Config config = ConfigTest.read(Map.of());
        assertEquals("not_allowed", new ScoringClient(config, false, plugin, null).unreachable());
    }
}
