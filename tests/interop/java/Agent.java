import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.ArrayList;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.config.BackoffPolicy;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.DeadLetterPolicy;
import org.apache.pulsar.client.api.v5.config.ProducerAccessMode;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.config.TransactionPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Does what it reads: one JSON object a line, {"id": 1, "do": "send", …}, answered by {"id": 1, …} once it is done, or by
 * {"id": 1, "error": …, "kind": …}. Producers, consumers and transactions have the names that the lines give them.
 */
public final class Agent {
    private static final Gson GSON = new Gson();
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final Map<String, Object> KEPT = new ConcurrentHashMap<>();
    private static final Map<String, MessageId> IDS = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);  // of libraries
        ExecutorService pool = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            JsonObject asked = JsonParser.parseString(line).getAsJsonObject();
            if (asked.has("now")) {  // in the order of the lines
                answer(asked);
            } else {
                pool.execute(() -> answer(asked));
            }
        }
        System.exit(0);
    }

    private static void answer(JsonObject asked) {
        try {
            Object found = act(asked);
            if (found instanceof CompletableFuture<?> later) {
                later.whenComplete((value, error) -> say(asked, value, error));
            } else {
                say(asked, found, null);
            }
        } catch (Throwable e) {
            say(asked, null, e);
        }
    }

    private static void say(JsonObject asked, Object value, Throwable error) {
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("id", asked.get("id").getAsLong());
        if (error == null) {
            said.put("value", value);
        } else {
            Throwable first = error;  // of a future's wrappers
            while (first instanceof java.util.concurrent.CompletionException
                    || first instanceof java.util.concurrent.ExecutionException) {
                first = first.getCause();
            }
            said.put("error", String.valueOf(error));
            said.put("kind", first.getClass().getSimpleName());
        }
        synchronized (OUT) {
            OUT.println(GSON.toJson(said));
        }
    }

    private static String text(JsonObject asked, String name) {
        return asked.has(name) && !asked.get(name).isJsonNull() ? asked.get(name).getAsString() : null;
    }

    private static PulsarClient client(JsonObject asked) {
        return (PulsarClient) KEPT.get(asked.has("client") ? text(asked, "client") : "client");
    }

    @SuppressWarnings("unchecked")
    private static Object act(JsonObject asked) throws Exception {
        String name = text(asked, "name");
        if (text(asked, "do").startsWith("classic_")) {
            return Classic.act(asked);
        }
        switch (text(asked, "do")) {
            case "client": {
                var builder = PulsarClient.builder().serviceUrl(text(asked, "url"))
                        .operationTimeout(Duration.ofSeconds(30));
                if (asked.has("token")) {
                    builder.authentication(
                            "org.apache.pulsar.client.impl.auth.AuthenticationToken", "token:" + text(asked, "token"));
                }
                if (asked.has("transactions")) {  // how long they may take
                    Duration most = Duration.ofSeconds(asked.get("transactions").getAsLong());
                    builder.transactionPolicy(TransactionPolicy.builder().timeout(most).build());
                }
                KEPT.put(name, builder.build());
                return null;
            }
            case "producer": {
                var builder = client(asked).newProducer(Schema.bytes()).topic(text(asked, "topic"))
                        .sendTimeout(Duration.ofSeconds(60)).blockIfQueueFull(true);
                if (asked.has("as")) {
                    builder.producerName(text(asked, "as"));
                }
                if (asked.has("access")) {
                    builder.accessMode(ProducerAccessMode.valueOf(text(asked, "access")));
                }
                if (asked.has("single")) {
                    builder.batchingPolicy(BatchingPolicy.ofDisabled());
                }
                Producer<byte[]> made = builder.create();
                KEPT.put(name, made);
                return made.topic();
            }
            case "send": {
                var message = ((Producer<byte[]>) KEPT.get(name)).async().newMessage()
                        .value(text(asked, "value").getBytes(StandardCharsets.UTF_8));
                if (asked.has("key")) {
                    message.key(text(asked, "key"));
                }
                if (asked.has("event_time")) {
                    message.eventTime(Instant.ofEpochMilli(asked.get("event_time").getAsLong()));
                }
                if (asked.has("properties")) {
                    Map<String, String> properties = new LinkedHashMap<>();
                    asked.getAsJsonObject("properties").entrySet()
                            .forEach(e -> properties.put(e.getKey(), e.getValue().getAsString()));
                    message.properties(properties);
                }
                if (asked.has("delay_ms")) {
                    message.deliverAfter(Duration.ofMillis(asked.get("delay_ms").getAsLong()));
                }
                if (asked.has("transaction")) {
                    message.transaction((Transaction) KEPT.get(text(asked, "transaction")));
                }
                return message.send().thenApply(Agent::told);
            }
            case "stream": {
                var builder = client(asked).newStreamConsumer(Schema.bytes())
                        .subscriptionName(text(asked, "subscription"))
                        .subscriptionInitialPosition(position(asked))
                        .acknowledgmentGroupTime(Duration.ZERO);
                if (asked.has("topic")) {
                    builder.topic(text(asked, "topic"));
                } else {
                    builder.namespace(text(asked, "namespace"));
                }
                if (asked.has("as")) {
                    builder.consumerName(text(asked, "as"));
                }
                KEPT.put(name, builder.subscribe());
                return null;
            }
            case "queue": {
                var builder = client(asked).newQueueConsumer(Schema.bytes())
                        .subscriptionName(text(asked, "subscription"))
                        .subscriptionInitialPosition(position(asked))
                        .acknowledgmentGroupTime(Duration.ZERO);
                if (asked.has("topic")) {
                    builder.topic(text(asked, "topic"));
                } else {
                    builder.namespace(text(asked, "namespace"));
                }
                if (asked.has("queue_size")) {
                    builder.receiverQueueSize(asked.get("queue_size").getAsInt());
                }
                if (asked.has("nack_ms")) {
                    Duration pause = Duration.ofMillis(asked.get("nack_ms").getAsLong());
                    builder.negativeAckRedeliveryBackoff(BackoffPolicy.exponential(pause, pause));
                }
                if (asked.has("redeliveries")) {
                    builder.deadLetterPolicy(
                            DeadLetterPolicy.builder().maxRedeliverCount(asked.get("redeliveries").getAsInt()).build());
                }
                KEPT.put(name, builder.subscribe());
                return null;
            }
            case "checkpoint_consumer": {
                Checkpoint start = switch (text(asked, "start")) {
                    case "earliest" -> Checkpoint.earliest();
                    case "latest" -> Checkpoint.latest();
                    default -> Checkpoint.fromByteArray(Base64.getDecoder().decode(text(asked, "start")));
                };
                var builder = client(asked).newCheckpointConsumer(Schema.bytes())
                        .topic(text(asked, "topic")).startPosition(start);
                if (asked.has("group")) {
                    builder.consumerGroup(text(asked, "group"));
                }
                KEPT.put(name, builder.create());
                return null;
            }
            case "receive":
                return received(asked, name);
            case "checkpoint": {
                byte[] made = ((CheckpointConsumer<byte[]>) KEPT.get(name)).checkpoint().toByteArray();
                return Base64.getEncoder().encodeToString(made);
            }
            case "ack": {
                MessageId id = IDS.get(text(asked, "message"));
                Transaction in = asked.has("transaction") ? (Transaction) KEPT.get(text(asked, "transaction")) : null;
                Object consumer = KEPT.get(name);
                if (consumer instanceof QueueConsumer<?> queue) {
                    if (in == null) {
                        queue.acknowledge(id);
                    } else {
                        queue.acknowledge(id, in);
                    }
                } else if (in == null) {
                    ((StreamConsumer<byte[]>) consumer).acknowledgeCumulative(id);
                } else {
                    ((StreamConsumer<byte[]>) consumer).acknowledgeCumulative(id, in);
                }
                return null;
            }
            case "nack":
                ((QueueConsumer<byte[]>) KEPT.get(name)).negativeAcknowledge(IDS.get(text(asked, "message")));
                return null;
            case "begin":
                KEPT.put(name, client(asked).newTransaction());
                return null;
            case "commit":
                ((Transaction) KEPT.get(name)).commit();
                return null;
            case "abort":
                ((Transaction) KEPT.get(name)).abort();
                return null;
            case "state":
                return ((Transaction) KEPT.get(name)).state().toString();
            case "close":
                ((AutoCloseable) closeable(KEPT.remove(name))).close();
                return null;
            default:
                throw new IllegalArgumentException(text(asked, "do"));
        }
    }

    private static AutoCloseable closeable(Object one) {
        return one instanceof AutoCloseable found ? found : ((java.io.Closeable) one)::close;
    }

    private static SubscriptionInitialPosition position(JsonObject asked) {
        return "earliest".equals(text(asked, "from"))
                ? SubscriptionInitialPosition.EARLIEST : SubscriptionInitialPosition.LATEST;
    }

    /** Up to "count" messages; fewer if none has come for "quiet_ms". */
    @SuppressWarnings("unchecked")
    private static Object received(JsonObject asked, String name) throws Exception {
        List<Object> found = new ArrayList<>();
        Object consumer = KEPT.get(name);
        Duration wait = Duration.ofMillis(asked.get("quiet_ms").getAsLong());
        while (found.size() < asked.get("count").getAsInt()) {
            Message<byte[]> one;
            if (consumer instanceof StreamConsumer<?> stream) {
                one = ((StreamConsumer<byte[]>) stream).receive(wait);
            } else if (consumer instanceof QueueConsumer<?> queue) {
                one = ((QueueConsumer<byte[]>) queue).receive(wait);
            } else {
                one = ((CheckpointConsumer<byte[]>) consumer).receive(wait);
            }
            if (one == null) {
                break;
            }
            found.add(shown(one));
            if (asked.has("ack")) {
                if (consumer instanceof QueueConsumer<?> queue) {
                    queue.acknowledge(one.id());
                } else {
                    ((StreamConsumer<byte[]>) consumer).acknowledgeCumulative(one.id());
                }
            }
        }
        return found;
    }

    private static Map<String, Object> shown(Message<byte[]> one) {
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("value", new String(one.value(), StandardCharsets.UTF_8));
        shown.put("key", one.key().orElse(null));
        shown.put("properties", one.properties());
        shown.put("event_time", one.eventTime().map(Instant::toEpochMilli).orElse(null));
        shown.put("sequence", one.sequenceId());
        shown.put("redelivered", one.redeliveryCount());
        shown.put("topic", one.topic());
        shown.put("message", told(one.id()));
        return shown;
    }

    private static String told(MessageId id) {
        String text = Base64.getEncoder().encodeToString(id.toByteArray());
        IDS.put(text, id);
        return text;
    }
}
