package rerank.opensearch;

import java.nio.file.Path;
import java.util.List;
import java.util.function.Supplier;
import org.opensearch.action.support.ActionFilter;
import org.opensearch.cluster.metadata.IndexNameExpressionResolver;
import org.opensearch.cluster.node.DiscoveryNodes;
import org.opensearch.common.settings.*;
import org.opensearch.plugins.ActionPlugin;
import org.opensearch.plugins.ReloadablePlugin;
import org.opensearch.rest.RestController;
import org.opensearch.rest.RestHandler;

/**
 * The plugin with counters at {@code GET /_rerank/stats}, tokens that change without a restart, and repeated searches.
 */
public final class WholePlugin extends RerankPlugin implements ActionPlugin, ReloadablePlugin {
    public WholePlugin(Settings settings, Path config) {
        super(settings, config);
    }

    /** On POST /_nodes/reload_secure_settings. */
    @Override
    public void reload(Settings settings) {
        readTokens(settings);
    }

    @Override
    public List<ActionFilter> getActionFilters() {
        return List.of(new AttemptFilter(this));
    }

    @Override
    public List<RestHandler> getRestHandlers(Settings settings, RestController controller, ClusterSettings clusterSettings,
            IndexScopedSettings indexScopedSettings, SettingsFilter settingsFilter, IndexNameExpressionResolver resolver,
            Supplier<DiscoveryNodes> nodes) {
        return List.of(new StatsHandler(stats));
    }
}
