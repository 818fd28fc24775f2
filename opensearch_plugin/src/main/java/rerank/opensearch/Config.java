package rerank.opensearch;

import static org.opensearch.ingest.ConfigurationUtils.*;

import java.net.URI;
import java.net.http.HttpRequest;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/**
 * The settings of the request processor. Times are in milliseconds. urls: of the services, which take turns. shadow: score and
 * count searches, and keep their order. stacks: those that searches may name. rawValues: whether explanations show the values of
 * signals, which can be values of fields that the user may not see. minScore: hits with a smaller probability of relevance are
 * removed; null: none. retrieves: whether documents are added that the rankers of the stack retrieve. words: fields with the
 * words of users, in which a required match is no condition for them.
 */
record Config(List<URI> urls, String stack, List<String> stacks, boolean rawValues, int depth, int collapseFactor, Double minScore, int timeout, boolean failuresAreErrors, boolean fetchesPage,
              boolean retrieves, List<String> words, boolean shadow, int maxConnections, int breakerFailures, int breakerPause) {
    private static final int MOST_URLS = 16;

    static Config read(String tag, Map<String, Object> config) {
        return new Config(
            urls(tag, config),
            readOptionalStringProperty(Protocol.PROCESSOR, tag, config, "stack"), stacks(tag, config),
            readBooleanProperty(Protocol.PROCESSOR, tag, config, "raw_values", false),
            number(tag, config, "depth", 100, 10_000), number(tag, config, "collapse_factor", 3, 100), probability(tag, config, "min_score"), number(tag, config, "timeout", 1_000, 60_000),
            choice(tag, config, "on_failure", "first_stage", "error") == false, choice(tag, config, "fetch", "page", "candidates"),
            readBooleanProperty(Protocol.PROCESSOR, tag, config, "retrieve", false), words(tag, config),
            readBooleanProperty(Protocol.PROCESSOR, tag, config, "shadow", false),
            number(tag, config, "max_connections", 128, 10_000),
            number(tag, config, "breaker_failures", 5, 1_000_000), number(tag, config, "breaker_pause", 5_000, 3_600_000));
    }

    /** Part of the time limit of a search for the addition of documents. */
    int retrievalTimeout() {
        return Math.max(timeout / 2, 1);
    }

    /** Candidates of a search with {@code collapse}; more than {@code depth} only up to the default limit of the service. */
    int groupedDepth() {
        return Math.min(depth * collapseFactor, Math.max(depth, Protocol.MOST_CANDIDATES));
    }

    private static List<String> stacks(String tag, Map<String, Object> config) {
        List<String> stacks = readOptionalList(Protocol.PROCESSOR, tag, config, "stacks");
        return stacks == null ? List.of() : stacks.stream().map(Config::withoutSpaces).toList();
    }

    private static List<String> words(String tag, Map<String, Object> config) {
        List<String> words = readOptionalList(Protocol.PROCESSOR, tag, config, "words");
        return words == null ? List.of() : List.copyOf(words);
    }

    /** The services: one, several with commas between them, or a list. */
    private static List<URI> urls(String tag, Map<String, Object> config) {
        List<?> urls = config.get("url") instanceof List<?> ? readList(Protocol.PROCESSOR, tag, config, "url")
            : Arrays.asList(readStringProperty(Protocol.PROCESSOR, tag, config, "url").split(",", -1));
        List<URI> endpoints = urls.stream().map(url -> endpoint(tag, String.valueOf(url).strip())).distinct().toList();
        if (endpoints.isEmpty() || endpoints.size() > MOST_URLS) {
            throw newConfigurationException(Protocol.PROCESSOR, tag, "url", "must have from 1 to " + MOST_URLS + " URLs");
        }
        return endpoints;
    }

    /** The URL of a service without {@link Protocol#PATH}. */
    static String base(URI url) {
        String text = url.toString();
        return text.substring(0, text.length() - Protocol.PATH.length());
    }

    private static String withoutSpaces(String stack) {
        return stack.replaceAll("\\s", "");
    }

    /** Whether a search may name this stack, whatever it reads. */
    boolean allowsStack(String named) {
        String stackWithoutSpaces = withoutSpaces(named);
        return stacks.contains(stackWithoutSpaces) || stack != null && stackWithoutSpaces.equals(withoutSpaces(stack));
    }

    /** Whether a list of URLs without paths contains this one. A listed port may be a star. */
    static boolean allows(List<String> allowed, URI url) {
        String base = base(url);
        return allowed.stream().map(pattern -> pattern.replaceAll("/+$", "")).anyMatch(pattern -> pattern.equals(base)
            || pattern.endsWith(":*") && base.matches("\\Q" + pattern.substring(0, pattern.length() - 1) + "\\E\\d+"));
    }

    /** Whether the value is the default. */
    private static boolean choice(String tag, Map<String, Object> config, String name, String standard, String other) {
        String word = readStringProperty(Protocol.PROCESSOR, tag, config, name, standard);
        if (word.equals(standard) == false && word.equals(other) == false) {
            throw newConfigurationException(Protocol.PROCESSOR, tag, name, "must be " + standard + " or " + other);
        }
        return word.equals(standard);
    }

    private static int number(String tag, Map<String, Object> config, String name, int standard, int most) {
        int value = readIntProperty(Protocol.PROCESSOR, tag, config, name, standard);
        if (value < 1 || value > most) {
            throw newConfigurationException(Protocol.PROCESSOR, tag, name, "must be from 1 to " + most);
        }
        return value;
    }

    /** A number from 0 to 1, or null. */
    private static Double probability(String tag, Map<String, Object> config, String name) {
        Double value = config.containsKey(name) ? readDoubleProperty(Protocol.PROCESSOR, tag, config, name) : null;
        if (value != null && (value >= 0 && value <= 1) == false) {
            throw newConfigurationException(Protocol.PROCESSOR, tag, name, "must be from 0 to 1");
        }
        return value;
    }

    private static URI endpoint(String tag, String url) {
        // No user and password: anyone who can read the pipeline would see them. The token is in the keystore.
        String endpoint = url.matches("[\\p{ASCII}&&[^@?#]]*") ? url.replaceAll("/+$", "") + Protocol.PATH : "";
        try {
            URI uri = HttpRequest.newBuilder(URI.create(endpoint)).build().uri(); // refuses unusable URLs
            if (uri.getPort() == 0 || uri.getPort() > 65_535) {
                throw new IllegalArgumentException("not a port");
            }
            return uri;
        } catch (IllegalArgumentException e) {
            throw newConfigurationException(Protocol.PROCESSOR, tag, "url", "must look like https://host:port");
        }
    }
}
