package rerank.opensearch;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Proxy;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.Locale;
import java.util.regex.Pattern;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import rerank.opensearch.ScoringClient.Failure;

/**
 * A connection to the service, which sends one POST of HTTP/1.1 at a time, on the thread of the caller. The clients of the JDK
 * are no alternative: HttpClient wakes four threads per call, and HttpURLConnection limits its idle connections by a property
 * of the whole JVM. Other threads may only call {@link #close}.
 */
final class HttpConnection implements AutoCloseable {
    private static final Pattern STATUS_LINE = Pattern.compile("HTTP/1\\.[01] [1-9]\\d\\d( .*)?");
    private static final int LONGEST_HEAD = 1 << 16;
    private static final int SEND_TOGETHER = 1 << 16;
    private static final int FIRST_BUFFER = 1 << 14;
    /** Bytes of one read. */
    static final int BUFFER = 1 << 13;

    /** The connection was closed before the first byte of an answer. */
    static final class ClosedException extends IOException {
        private static final long serialVersionUID = 1;

        ClosedException(String message) {
            super(message);
        }
    }

    /** A status, and the body of at most as many bytes as are allowed. */
    record Answer(int status, byte[] body) { }

    /** The parts of the head of an answer that the body depends on. length: -1 if unknown. */
    private record Head(int status, long length, boolean isChunked, boolean keepsOpen) {
        boolean hasBody() {
            return status != 204 && status != 304;
        }
    }

    private final Socket socket = new Socket(Proxy.NO_PROXY);
    private InputStream in;
    private OutputStream out;
    private final byte[] buffer = new byte[BUFFER];
    private int position; // of the next byte in the buffer
    private int limit; // number of bytes in the buffer
    private boolean isReusable;
    private volatile boolean isClosed;
    private long idleSince;

    /** Connect to the host of a URL. timeout: in milliseconds, for each step. */
    void open(URI url, int timeout) throws IOException {
        boolean isSecure = url.getScheme().equalsIgnoreCase("https");
        int port = url.getPort() >= 0 ? url.getPort() : isSecure ? 443 : 80;
        socket.connect(new InetSocketAddress(url.getHost(), port), timeout);
        socket.setTcpNoDelay(true);
        socket.setSoTimeout(timeout);
        Socket channel = isSecure ? secure(url.getHost(), port) : socket;
        in = channel.getInputStream();
        out = channel.getOutputStream();
    }

    private SSLSocket secure(String host, int port) throws IOException {
        SSLSocket secure;
        try {
            secure = (SSLSocket) SSLContext.getDefault().getSocketFactory().createSocket(socket, host, port, true);
        } catch (NoSuchAlgorithmException e) {
            throw new IOException(e);
        }
        SSLParameters parameters = secure.getSSLParameters();
        parameters.setEndpointIdentificationAlgorithm("HTTPS"); // the certificate must name the host
        secure.setSSLParameters(parameters);
        secure.startHandshake();
        return secure;
    }

    /**
     * Post a body. url: with a path, and without a query. headers: lines that end with CR LF. timeout: in milliseconds, of each
     * read. maxAnswer: bytes; a Failure if the answer has more. Throws ClosedException if no byte of an answer came.
     */
    Answer post(URI url, String headers, byte[] body, int timeout, int maxAnswer) throws IOException {
        isReusable = false;
        socket.setSoTimeout(timeout);
        try {
            send(url, headers, body);
            fill();
        } catch (SocketTimeoutException e) {
            throw e;
        } catch (IOException e) {
            throw new ClosedException(e.getMessage());
        }
        Head head = head();
        while (head.status < 200) { // it announces the answer
            head = head();
        }
        byte[] answer = head.hasBody() ? body(head, maxAnswer) : new byte[0];
        boolean isEndKnown = head.isChunked || head.length >= 0 || head.hasBody() == false;
        isReusable = isEndKnown && head.keepsOpen && position == limit;
        return new Answer(head.status, answer);
    }

    private void send(URI url, String headers, byte[] body) throws IOException {
        String path = url.getRawPath();
        String host = url.getPort() < 0 ? url.getHost() : url.getHost() + ":" + url.getPort();
        String head = "POST " + path + " HTTP/1.1\r\nHost: " + host + "\r\nUser-Agent: opensearch-rerank\r\n" + headers
            + "Content-Length: " + body.length + "\r\n\r\n";
        byte[] bytes = head.getBytes(StandardCharsets.ISO_8859_1);
        if (body.length <= SEND_TOGETHER) { // the service wakes once
            byte[] request = Arrays.copyOf(bytes, bytes.length + body.length);
            System.arraycopy(body, 0, request, bytes.length, body.length);
            out.write(request);
        } else {
            out.write(bytes);
            out.write(body);
        }
        out.flush();
    }

    /** Read more bytes into the empty buffer. */
    private void fill() throws IOException {
        int count = in.read(buffer);
        if (count < 0) {
            throw new EOFException("the answer has no end");
        }
        position = 0;
        limit = count;
    }

    private int read() throws IOException {
        if (position == limit) {
            fill();
        }
        return buffer[position++];
    }

    /** A line without its end. budget: bytes that the head may still have. */
    private String line(int[] budget) throws IOException {
        StringBuilder line = new StringBuilder();
        for (int next = read(); next != '\n'; next = read()) {
            if (--budget[0] < 0) {
                throw new IOException("the head of the answer is too long");
            }
            line.append((char) (next & 0xff));
        }
        int end = line.length() - 1;
        return end >= 0 && line.charAt(end) == '\r' ? line.substring(0, end) : line.toString();
    }

    private Head head() throws IOException {
        int[] budget = {LONGEST_HEAD};
        String first = line(budget);
        if (STATUS_LINE.matcher(first).matches() == false) {
            throw new IOException("the answer is not HTTP/1.1");
        }
        int status = Integer.parseInt(first.substring(9, 12));
        boolean keepsOpen = first.startsWith("HTTP/1.1"), isChunked = false;
        long length = -1;
        for (String line = line(budget); line.isEmpty() == false; line = line(budget)) {
            int colon = line.indexOf(':');
            String name = line.substring(0, Math.max(colon, 0)).strip().toLowerCase(Locale.ROOT);
            String value = line.substring(colon + 1).strip().toLowerCase(Locale.ROOT);
            switch (name) {
                case "content-length" -> {
                    if (length >= 0 && length != number(value, 10)) {
                        throw new IOException("the answer has two lengths");
                    }
                    length = number(value, 10);
                }
                case "transfer-encoding" -> isChunked = value.endsWith("chunked");
                case "connection" -> keepsOpen = keepsOpen ? value.contains("close") == false : value.contains("keep-alive");
                default -> { }
            }
        }
        return new Head(status, length, isChunked, keepsOpen);
    }

    private static long number(String digits, int radix) throws IOException {
        try {
            long number = Long.parseLong(digits, radix);
            if (number >= 0) {
                return number;
            }
        } catch (NumberFormatException e) {
            // as a negative number
        }
        throw new IOException("a length in the answer is no number");
    }

    private byte[] body(Head head, int most) throws IOException {
        if (head.isChunked) {
            return chunks(most);
        }
        if (head.length > most) {
            throw new Failure("too_large", "answered too many bytes");
        }
        Body body = new Body(most);
        if (head.length >= 0) {
            body.append(head.length);
            return body.bytes();
        }
        try {
            body.append(Long.MAX_VALUE);
        } catch (EOFException e) {
            // the answer ends with the connection
        }
        return body.bytes();
    }

    private byte[] chunks(int most) throws IOException {
        Body body = new Body(most);
        while (true) {
            int[] budget = {LONGEST_HEAD};
            String size = line(budget);
            int end = size.indexOf(';'); // of the size; extensions follow
            long length = number((end < 0 ? size : size.substring(0, end)).strip(), 16);
            if (length == 0) {
                while (line(budget).isEmpty() == false) {
                    // a header after the body
                }
                return body.bytes();
            }
            body.append(length);
            if (line(budget).isEmpty() == false) {
                throw new IOException("a chunk is longer than its announced size");
            }
        }
    }

    /** Bytes of a body, which grow with what has come: the announced length may be wrong. */
    private final class Body {
        private final int most;
        private byte[] bytes = new byte[0];
        private int size;

        Body(int most) {
            this.most = most;
        }

        void append(long count) throws IOException {
            for (long missing = count; missing > 0;) {
                if (position == limit) {
                    fill();
                }
                int taken = (int) Math.min(missing, limit - position);
                if (taken > most - size) {
                    throw new Failure("too_large", "answered too many bytes");
                }
                if (size + taken > bytes.length) {
                    long grown = Math.max(Math.max(2L * bytes.length, FIRST_BUFFER), size + taken);
                    long needed = size + Math.min(missing, most); // at most
                    bytes = Arrays.copyOf(bytes, (int) Math.min(grown, Math.min(most, needed)));
                }
                System.arraycopy(buffer, position, bytes, size, taken);
                position += taken;
                size += taken;
                missing -= taken;
            }
        }

        byte[] bytes() {
            return size == bytes.length ? bytes : Arrays.copyOf(bytes, size);
        }
    }

    /** Whether the last answer is complete, and the service keeps the connection open. */
    boolean isReusable() {
        return isReusable && isClosed == false;
    }

    /** Begin an idle time. */
    void rest(long now) {
        idleSince = now;
    }

    long idleSince() {
        return idleSince;
    }

    /**
     * Whether nothing has come since the last answer: it would be read as the next answer. Bytes can be decrypted already, or
     * still wait in the lower socket.
     */
    boolean isQuiet() {
        try {
            return in.available() == 0 && socket.getInputStream().available() == 0;
        } catch (IOException e) {
            return false;
        }
    }

    /** Close the connection, also while another thread reads. It does not wait, because the lower socket is closed. */
    @Override
    public void close() {
        isClosed = true;
        try {
            socket.close();
        } catch (IOException e) {
            // it is of no more use
        }
    }
}
