package rerank.opensearch;

import java.io.*;
import java.net.*;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.SSLSocketFactory;
import rerank.opensearch.ScoringClient.Failure;

/**
 * A socket to a service, for one call after the other: as much of HTTP/1.1 as posting a body takes. Whoever calls waits, so
 * that nobody has to be told; {@link #close} by another thread ends the waiting.
 */
final class Connection implements Closeable {
    private static final int LONGEST_LINE = 1 << 13, MOST_HEADERS = 200, SMALL = 1 << 16, BUFFER = 1 << 13;
    private static final Pattern STATUS = Pattern.compile("HTTP/1\\.([01]) ([1-5]\\d\\d)( .*)?");
    private final URI url;
    private final String begin;
    private final Socket plain = new Socket();
    private Socket socket = plain;
    private InputStream in;
    private OutputStream out;
    private boolean open;
    long idleSince; // System.nanoTime()

    Connection(URI url) {
        this.url = url;
        begin = "POST " + URI.create(url.toASCIIString()).getRawPath() + " HTTP/1.1\r\nHost: " + url.getRawAuthority()
            + "\r\nContent-Type: application/octet-stream\r\nContent-Length: ";
    }

    /** Raises ConnectException when nobody is there. */
    void open(long millis) throws IOException {
        boolean secure = "https".equalsIgnoreCase(url.getScheme());
        int port = url.getPort() != -1 ? url.getPort() : secure ? 443 : 80;
        String host = url.getHost();
        try {
            plain.setTcpNoDelay(true); // else the end of a long call would wait for an acknowledgement
            plain.connect(new InetSocketAddress(InetAddress.getByName(host), port), Math.clamp(millis, 1, Integer.MAX_VALUE));
        } catch (IOException e) {
            throw (ConnectException) new ConnectException(String.valueOf(e.getMessage())).initCause(e);
        }
        if (secure) {
            SSLSocket over = (SSLSocket) ((SSLSocketFactory) SSLSocketFactory.getDefault()).createSocket(plain, host, port, true);
            SSLParameters checks = over.getSSLParameters();
            checks.setEndpointIdentificationAlgorithm("HTTPS"); // that the certificate is of this host
            over.setSSLParameters(checks);
            socket = over;
        }
        in = new BufferedInputStream(socket.getInputStream(), BUFFER);
        out = socket.getOutputStream();
    }

    /** Whether it can take a call: what comes unasked is the end of it. */
    boolean isQuiet() {
        try {
            return in.available() == 0;
        } catch (IOException e) {
            return false;
        }
    }

    /** Whether another call may follow. */
    boolean isOpen() {
        return open;
    }

    /**
     * Post a body, and return that of the answer. Raises Failure for another status than 200 and for more bytes than {@code most},
     * IOException for a connection that breaks and for what is no HTTP.
     */
    byte[] post(byte[] body, String token, int most) throws IOException {
        open = false;
        byte[] head = head(body.length, token);
        if (body.length <= SMALL) { // in one packet where it fits
            byte[] both = new byte[head.length + body.length];
            System.arraycopy(head, 0, both, 0, head.length);
            System.arraycopy(body, 0, both, head.length, body.length);
            out.write(both);
        } else {
            out.write(head);
            out.write(body);
        }
        out.flush();
        return answer(most);
    }

    private byte[] head(int length, String token) {
        StringBuilder head = new StringBuilder(256).append(begin).append(length);
        if (token != null) {
            if (token.chars().allMatch(c -> c > 31 && c < 127) == false) {
                throw new Failure("error", "cannot be sent a token of other characters than ASCII");
            }
            head.append("\r\nAuthorization: Bearer ").append(token);
        }
        return head.append("\r\n\r\n").toString().getBytes(StandardCharsets.ISO_8859_1);
    }

    private byte[] answer(int most) throws IOException {
        int status;
        long length;
        boolean chunked, lasts;
        do { // answers 1xx only say that the answer is still to come
            String line = line();
            Matcher first = STATUS.matcher(line);
            if (first.matches() == false) {
                throw new ProtocolException("answered no HTTP");
            }
            status = Integer.parseInt(first.group(2));
            lasts = first.group(1).equals("1");
            length = -1;
            chunked = false;
            int headers = 0;
            for (line = line(); line.isEmpty() == false; line = line()) {
                int colon = line.indexOf(':');
                if (colon < 0 || ++headers > MOST_HEADERS) {
                    throw new ProtocolException("answered no HTTP");
                }
                String value = line.substring(colon + 1).strip().toLowerCase(Locale.ROOT);
                switch (line.substring(0, colon).toLowerCase(Locale.ROOT)) {
                    case "content-length" -> length = number(value, 10);
                    case "transfer-encoding" -> chunked = value.equals("chunked");
                    case "connection" -> lasts = value.equals("close") == false && (lasts || value.equals("keep-alive"));
                    default -> { }
                }
            }
        } while (status < 200);
        boolean empty = status == 204 || status == 304;
        byte[] body = empty ? new byte[0] : chunked ? chunks(most) : length >= 0 ? bytes(length, most) : rest(most);
        open = lasts && (empty || chunked || length >= 0);
        if (status != 200) {
            throw new Failure("status_" + status, "answered with status " + status + ScoringResponse.refusal(status, body));
        }
        return body;
    }

    private byte[] chunks(int most) throws IOException {
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        for (;;) {
            String line = line();
            int end = line.indexOf(';');
            long size = number((end < 0 ? line : line.substring(0, end)).strip(), 16);
            if (size == 0) {
                while (line().isEmpty() == false) { } // trailers
                return body.toByteArray();
            }
            body.writeBytes(bytes(size, most - body.size()));
            if (line().isEmpty() == false) {
                throw new ProtocolException("answered no HTTP");
            }
        }
    }

    private byte[] bytes(long length, int most) throws IOException {
        if (length > most) {
            throw tooLarge();
        }
        byte[] body = in.readNBytes((int) length);
        if (body.length < length) {
            throw new EOFException("the answer ended early");
        }
        return body;
    }

    private byte[] rest(int most) throws IOException {
        byte[] body = in.readNBytes(most);
        if (in.read() != -1) {
            throw tooLarge();
        }
        return body;
    }

    private static Failure tooLarge() {
        return new Failure("too_large", "answered too many bytes");
    }

    private static long number(String text, int base) throws IOException {
        try {
            long found = Long.parseLong(text, base);
            if (found >= 0) {
                return found;
            }
        } catch (NumberFormatException e) { // as below
        }
        throw new ProtocolException("answered no HTTP");
    }

    private String line() throws IOException {
        StringBuilder line = new StringBuilder(64);
        for (int c = in.read(); c != '\n'; c = in.read()) {
            if (c < 0) {
                throw new EOFException("the answer ended early");
            }
            if (line.length() == LONGEST_LINE) {
                throw new ProtocolException("answered no HTTP");
            }
            line.append((char) c);
        }
        int end = line.length();
        return line.substring(0, end > 0 && line.charAt(end - 1) == '\r' ? end - 1 : end);
    }

    @Override
    public void close() {
        try {
            plain.close(); // not the one over it: that would still write
        } catch (IOException e) { // it is of no use any more either way
        }
    }
}
