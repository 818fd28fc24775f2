package rerank.opensearch;

import static org.junit.jupiter.api.Assertions.*;

import java.io.IOException;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.net.URI;
import java.util.*;
import java.util.concurrent.*;
import org.junit.jupiter.api.Test;

/** A pipeline that names several services. */
class SeveralServicesTest extends ScoringClientTestCase {
    @Test
    void servicesTakeTurns() throws Exception {
        ScoringClient service = services(Map.of(), closing(connection -> ANSWER), server(200, 0), server(200, 0));
        List<Integer> turns = new ArrayList<>();
        for (int i = 0; i < 6; i++) {
            turns.add(service.nextTurn());
        }
        assertEquals(List.of(0, 1, 2, 0, 1, 2), turns);
        for (int first : turns) {
            turn = first;
            assertEquals("fine", call(service));
        }
        assertEquals(2, accepted.get());
        assertEquals(2, clients.size(), "one connection to each of the others");
    }

    @Test
    void anotherServiceAnswersForOneThatFails() throws Exception {
        for (URI failing : List.of(dead(), closing(connection -> ""), server(502, 0), server(503, 0))) {
            ScoringClient service = services(Map.of(), failing, server(200, 0));
            for (int i = 0; i < 5; i++) {
                assertEquals("fine", call(service));
            }
            assertNull(service.unreachable());
        }
    }

    @Test
    void aServiceThatFailsIsSkippedForAWhile() throws Exception {
        ScoringClient service = services(Map.of("breaker_failures", 3), closing(connection -> "no HTTP"), server(200, 0));
        for (int i = 0; i < 6; i++) {
            assertEquals("fine", call(service));
        }
        assertEquals(3, accepted.get());
    }

    @Test
    void aServiceThatHangsLeavesTimeForAnother() throws Exception {
        ScoringClient service = services(Map.of("timeout", 10_000), server(200, 60_000), server(200, 0));
        assertEquals("fine", call(service));
    }

    @Test
    void aServiceThatAnswersSlowlyLeavesTimeForAnother() throws Exception {
        ServerSocket slow = listening();
        pool.execute(() -> {
            try (Socket client = slow.accept()) {
                for (byte next : ANSWER.getBytes()) { // each read ends in time, the answer does not
                    client.getOutputStream().write(next);
                    Thread.sleep(1_000);
                }
            } catch (IOException | InterruptedException e) { // the client has closed the connection
            }
        });
        ScoringClient service = services(Map.of("timeout", 4_000), url(slow), server(200, 0));
        assertEquals("fine", call(service));
    }

    @Test
    void aServiceThatReadsNothingLeavesTimeForAnother() throws Exception {
        ScoringClient service = services(Map.of("timeout", 6_000), url(listening()), server(200, 0));
        body = new byte[16 << 20]; // more than the buffers of the connection
        assertEquals("fine", call(service));
    }

    @Test
    void aServiceIsNotAskedInTooShortATime() throws Exception {
        List<ServerSocket> hanging = new ArrayList<>();
        for (int i = 0; i < 6; i++) {
            hanging.add(listening());
        }
        ScoringClient service = services(Map.of("timeout", 1_000), hanging.stream().map(this::url).toArray(URI[]::new));
        assertEquals("timeout", call(service));
        for (ServerSocket server : hanging.subList(4, 6)) {
            server.setSoTimeout(1);
            assertThrows(SocketTimeoutException.class, server::accept, "a half, a quarter, and two eighths of the time are over");
        }
    }

    @Test
    void noFurtherServiceIsAskedAfterTheEndOfTheSearch() throws Exception {
        endCall(services(Map.of(), hanging(""), server(200, 0)));
        pool.shutdown();
        assertTrue(pool.awaitTermination(60, TimeUnit.SECONDS));
        assertEquals(Set.of(), clients);
    }

    @Test
    void theFirstServiceHasHalfOfTheTimeIfAnotherCanBeAsked() throws Exception {
        assertEquals(99, service(Map.of(), server(200, 0)).firstLimit(99));
        ScoringClient service = services(Map.of("breaker_failures", 1), dead(), server(200, 0));
        assertEquals(49, service.firstLimit(99));
        assertEquals(1, service.firstLimit(1));
        assertEquals("fine", call(service));
        assertEquals(99, service.firstLimit(99), "the circuit breaker of the first service is open");
    }

    @Test
    void aFaultOfTheSearchIsNotSentToAnotherService() throws Exception {
        for (int status : List.of(400, 401, 403, 404, 413, 422, 500)) {
            assertEquals("status_" + status, call(services(Map.of(), server(status, 0), server(200, 0))));
        }
    }

    @Test
    void aCallFailsIfAllServicesFail() throws Exception {
        ScoringClient service = services(Map.of(), dead(), dead());
        assertEquals("refused", call(service));
        assertEquals("refused", call(service));
        assertEquals("breaker_open", service.unreachable());
        assertEquals("breaker_open", call(service));
        assertEquals(2, plugin.stats.breakerOpened.sum());
    }
}
