// Apache Pulsar's own admin client against the URL that it is given: each step says what came of it.

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.common.policies.data.ScalableSubscriptionType;
import org.apache.pulsar.common.policies.data.TenantInfo;

public class AdminClient {
    interface Step {
        Object run() throws Exception;
    }

    static void say(String what, Step step) {
        Object found;
        try {
            found = step.run();
        } catch (PulsarAdminException e) {
            found = e.getStatusCode();
        } catch (Exception e) {
            found = e;
        }
        System.out.println(what + " = " + found);
    }

    interface Change {
        void run() throws Exception;
    }

    static void change(String what, Change change) {
        say(what, () -> {
            change.run();
            return "done";
        });
    }

    public static void main(String[] arguments) throws Exception {
        String topic = "persistent://acme/orders/x";
        String parts = "persistent://acme/orders/p";
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[0]).build()) {
            say("clusters", () -> admin.clusters().getClusters());
            say("cluster", () -> admin.clusters().getCluster("standalone").getBrokerServiceUrl() != null);
            say("brokers", () -> admin.brokers().getActiveBrokers("standalone").size());
            change("health", () -> admin.brokers().healthcheck());
            say("version", () -> !admin.brokers().getVersion().isEmpty());
            TenantInfo info = TenantInfo.builder().adminRoles(Set.of("boss")).allowedClusters(Set.of("standalone")).build();
            change("create tenant", () -> admin.tenants().createTenant("acme", info));
            say("tenants", () -> admin.tenants().getTenants().contains("acme"));
            change("tenant", () -> admin.tenants().getTenantInfo("acme"));
            change("create namespace", () -> admin.namespaces().createNamespace("acme/orders"));
            say("namespaces", () -> admin.namespaces().getNamespaces("acme"));
            say("policies", () -> admin.namespaces().getPolicies("acme/orders").replication_clusters);
            change("create topic", () -> admin.topics().createNonPartitionedTopic(topic, Map.of("team", "x")));
            change("create topic again", () -> admin.topics().createNonPartitionedTopic(topic));
            say("properties", () -> admin.topics().getProperties(topic));
            change("more properties", () -> admin.topics().updateProperties(topic, Map.of("more", "y")));
            change("fewer properties", () -> admin.topics().removeProperties(topic, "team"));
            say("properties now", () -> admin.topics().getProperties(topic));
            change("create partitions", () -> admin.topics().createPartitionedTopic(parts, 2));
            change("create with properties", () -> admin.topics().createPartitionedTopic(parts + "2", 1, Map.of("a", "b")));
            change("update partitions", () -> admin.topics().updatePartitionedTopic(parts, 3));
            say("partitions", () -> admin.topics().getPartitionedTopicMetadata(parts).partitions);
            say("no topic", () -> admin.topics().getPartitionedTopicMetadata(topic + "none").partitions);
            say("list", () -> new TreeSet<>(admin.topics().getList("acme/orders")));
            say("namespace list", () -> admin.namespaces().getTopics("acme/orders").size());
            say("partitioned list", () -> admin.topics().getPartitionedTopicList("acme/orders"));
            change("subscribe", () -> admin.topics().createSubscription(topic, "s", MessageId.earliest));
            change("subscribe all", () -> admin.topics().createSubscription(parts, "s", MessageId.latest));
            say("subscriptions", () -> admin.topics().getSubscriptions(topic));
            say("subscriptions of partitions", () -> admin.topics().getSubscriptions(parts));
            say("backlog", () -> admin.topics().getStats(topic).getSubscriptions().get("s").getMsgBacklog());
            say("stats", () -> admin.topics().getPartitionedStats(parts, true).getPartitions().size());
            change("skip", () -> admin.topics().skipMessages(topic, "s", 2));
            change("skip all", () -> admin.topics().skipAllMessages(topic, "s"));
            change("reset to a time", () -> admin.topics().resetCursor(topic, "s", 0));
            change("reset to an id", () -> admin.topics().resetCursor(topic, "s", MessageId.earliest));
            say("lookup", () -> admin.lookups().lookupTopic(topic).startsWith("pulsar://"));
            change("terminate", () -> admin.topics().terminateTopic(topic));
            change("compact", () -> admin.topics().triggerCompaction(topic));
            change("unsubscribe", () -> admin.topics().deleteSubscription(topic, "s"));
            change("delete topic", () -> admin.topics().delete(topic));
            for (String each : List.of(parts, parts + "2")) {
                change("delete partitions", () -> admin.topics().deletePartitionedTopic(each));
            }
            say("nothing is left", () -> admin.topics().getList("acme/orders"));
            String scalable = "topic://acme/orders/x";
            var s = admin.scalableTopics();
            change("create scalable", () -> s.createScalableTopic(scalable, 2));
            change("create scalable with properties", () -> s.createScalableTopic(scalable + "2", 1, Map.of("a", "b")));
            say("scalable list", () -> s.listScalableTopics("acme/orders"));
            say("scalable by properties", () -> s.listScalableTopicsByProperties("acme/orders", Map.of("a", "b")));
            say("segments", () -> s.getMetadata(scalable).getSegments().keySet());
            change("scalable subscribe", () -> s.createSubscription(scalable, "s", ScalableSubscriptionType.QUEUE));
            change("seek", () -> s.seekSubscription(scalable, "s", 0));
            change("clear", () -> s.clearBacklog(scalable, "s"));
            change("split", () -> s.splitSegment(scalable, 0));
            change("merge", () -> s.mergeSegments(scalable, 2, 3));
            change("scalable unsubscribe", () -> s.deleteSubscription(scalable, "s"));
            say("auto-scale", () -> s.getAutoScalePolicy(scalable) != null);
            say("migrate", () -> {
                s.migrateToScalable(topic, false);
                return "done";
            });
            change("delete scalable", () -> s.deleteScalableTopic(scalable));
            change("delete scalable by force", () -> s.deleteScalableTopic(scalable + "2", true));
            change("delete namespace", () -> admin.namespaces().deleteNamespace("acme/orders"));
            change("delete tenant", () -> admin.tenants().deleteTenant("acme"));
        }
    }
}
