import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/** What the agent does with the classic client: commands whose name begins with "classic_". */
final class Classic {
    private static final Map<String, Object> KEPT = new ConcurrentHashMap<>();
    private static final Map<String, MessageId> IDS = new ConcurrentHashMap<>();
    private static final Map<String, Message<byte[]>> MESSAGES = new ConcurrentHashMap<>();

    private Classic() {
    }

    private static String text(JsonObject asked, String name) {
        return asked.has(name) && !asked.get(name).isJsonNull() ? asked.get(name).getAsString() : null;
    }

    private static Transaction transaction(JsonObject asked) {
        return asked.has("transaction") ? (Transaction) KEPT.get(text(asked, "transaction")) : null;
    }

    @SuppressWarnings("unchecked")
    static Object act(JsonObject asked) throws Exception {
        String name = text(asked, "name");
        switch (text(asked, "do")) {
            case "classic_client":
                KEPT.put(name, PulsarClient.builder().serviceUrl(text(asked, "url")).enableTransaction(true)
                        .operationTimeout(60, TimeUnit.SECONDS).build());
                return null;
            case "classic_producer":
                KEPT.put(name, client(asked).newProducer(Schema.BYTES).topic(text(asked, "topic"))
                        .sendTimeout(0, TimeUnit.SECONDS).enableBatching(asked.has("batched"))
                        .batchingMaxPublishDelay(200, TimeUnit.MILLISECONDS).create());
                return null;
            case "classic_consumer": {
                var builder = client(asked).newConsumer(Schema.BYTES).topic(text(asked, "topic"))
                        .subscriptionName("s").subscriptionType(SubscriptionType.valueOf(text(asked, "type")))
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).isAckReceiptEnabled(true)
                        .enableBatchIndexAcknowledgment(true)
                        .negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS);
                if (asked.has("retries")) {  // by way of the retry topic, after which a message is a dead letter
                    int most = asked.get("retries").getAsInt();
                    builder.enableRetry(true)
                            .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(most).build());
                }
                KEPT.put(name, builder.subscribe());
                return null;
            }
            case "classic_send": {
                var producer = (Producer<byte[]>) KEPT.get(name);
                var in = transaction(asked);
                var message = (in == null ? producer.newMessage() : producer.newMessage(in))
                        .value(text(asked, "value").getBytes(StandardCharsets.UTF_8));
                if (asked.has("key")) {
                    message.key(text(asked, "key"));
                }
                return message.sendAsync().thenApply(Classic::told);
            }
            case "classic_receive": {
                var consumer = (Consumer<byte[]>) KEPT.get(name);
                List<Object> found = new ArrayList<>();
                while (found.size() < asked.get("count").getAsInt()) {
                    Message<byte[]> one = consumer.receive(asked.get("quiet_ms").getAsInt(), TimeUnit.MILLISECONDS);
                    if (one == null) {
                        break;
                    }
                    found.add(shown(one));
                    if (asked.has("ack")) {
                        consumer.acknowledge(one);
                    }
                }
                return found;
            }
            case "classic_ack": {
                var consumer = (Consumer<byte[]>) KEPT.get(name);
                MessageId id = IDS.get(text(asked, "message"));
                return asked.has("cumulative")
                        ? consumer.acknowledgeCumulativeAsync(id, transaction(asked))
                        : consumer.acknowledgeAsync(id, transaction(asked));
            }
            case "classic_retry":
                return ((Consumer<byte[]>) KEPT.get(name)).reconsumeLaterAsync(
                        MESSAGES.get(text(asked, "message")), asked.get("delay_ms").getAsLong(), TimeUnit.MILLISECONDS);
            case "classic_nack":
                ((Consumer<byte[]>) KEPT.get(name)).negativeAcknowledge(IDS.get(text(asked, "message")));
                return null;
            case "classic_begin": {
                long ms = asked.has("timeout_ms") ? asked.get("timeout_ms").getAsLong() : 30_000;
                KEPT.put(name, client(asked).newTransaction().withTransactionTimeout(ms, TimeUnit.MILLISECONDS)
                        .build().get());
                return null;
            }
            case "classic_commit":
                return ((Transaction) KEPT.get(name)).commit();
            case "classic_abort":
                return ((Transaction) KEPT.get(name)).abort();
            case "classic_state":
                return ((Transaction) KEPT.get(name)).getState().toString();
            case "classic_close":
                ((java.io.Closeable) KEPT.remove(name)).close();
                return null;
            default:
                throw new IllegalArgumentException(text(asked, "do"));
        }
    }

    private static PulsarClient client(JsonObject asked) {
        return (PulsarClient) KEPT.get(asked.has("client") ? text(asked, "client") : "classic");
    }

    private static Map<String, Object> shown(Message<byte[]> one) {
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("value", new String(one.getValue(), StandardCharsets.UTF_8));
        shown.put("key", one.getKey());
        shown.put("redelivered", one.getRedeliveryCount());
        shown.put("properties", one.getProperties());
        shown.put("message", told(one.getMessageId()));
        MESSAGES.put((String) shown.get("message"), one);
        return shown;
    }

    private static String told(MessageId id) {
        String text = Base64.getEncoder().encodeToString(id.toByteArray());
        IDS.put(text, id);
        return text;
    }
}
