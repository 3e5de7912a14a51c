// Schemas of pairs: what a producer sends by one, a consumer of the same and one of any type read, with the key in the
// message's key or in the value; another schema is refused.
// Arguments: the service URL, the beginning of the topics' names.

import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

public class PairClient {
    static PulsarClient client;
    static String prefix;

    static void say(String what) {
        System.out.println("said:" + what);
    }

    public static class Order {
        public int count;
        public String note;
    }

    static <T> Consumer<T> consumer(Schema<T> schema, String topic, String name) throws Exception {
        return client.newConsumer(schema).topic(topic).subscriptionName(name)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    static void through(KeyValueEncodingType encoding, boolean json) throws Exception {
        String topic = prefix + "-" + encoding + "-" + json;
        Schema<Order> order = json ? Schema.JSON(Order.class) : Schema.AVRO(Order.class);
        Schema<KeyValue<String, Order>> schema = Schema.KeyValue(Schema.STRING, order, encoding);
        Producer<KeyValue<String, Order>> producer = client.newProducer(schema).topic(topic).create();
        Order sent = new Order();
        sent.count = 7;
        sent.note = "no sugar";
        producer.send(new KeyValue<>("ünïcödé", sent));
        producer.send(new KeyValue<>("only", null));
        producer.send(new KeyValue<>(null, sent));
        Consumer<KeyValue<String, Order>> same = consumer(schema, topic, "s");
        Consumer<GenericRecord> any = consumer(Schema.AUTO_CONSUME(), topic, "any");
        for (int i = 0; i < 3; i++) {
            Message<KeyValue<String, Order>> one = same.receive(30, TimeUnit.SECONDS);
            Order value = one.getValue().getValue();
            say(encoding + " " + one.getValue().getKey() + " "
                    + (value == null ? "null" : value.count + " " + value.note) + " " + one.hasKey());
            KeyValue<?, ?> generic = (KeyValue<?, ?>) any.receive(30, TimeUnit.SECONDS).getValue().getNativeObject();
            Object field = generic.getValue() == null ? null : ((GenericRecord) generic.getValue()).getField("count");
            say("any " + generic.getKey() + " " + field);
        }
        KeyValueEncodingType another = encoding == KeyValueEncodingType.INLINE
                ? KeyValueEncodingType.SEPARATED : KeyValueEncodingType.INLINE;
        refused(Schema.KeyValue(Schema.STRING, order, another), topic);
        refused(Schema.KeyValue(Schema.INT32, order, encoding), topic);
        refused(order, topic);
    }

    static void refused(Schema<?> schema, String topic) throws Exception {
        try {
            client.newProducer(schema).topic(topic).create();
            say("taken");
        } catch (PulsarClientException.IncompatibleSchemaException refused) {
            say("refused");
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(new java.io.PrintStream(System.out, true, StandardCharsets.UTF_8));
        client = PulsarClient.builder().serviceUrl(arguments[0]).build();
        prefix = arguments[1] + "-pairs";
        try {
            for (KeyValueEncodingType encoding : KeyValueEncodingType.values()) {
                through(encoding, true);
                through(encoding, false);
            }
            client.close();
            say("done");
        } catch (Throwable e) {
            e.printStackTrace();
        }
        System.exit(0);
    }
}
