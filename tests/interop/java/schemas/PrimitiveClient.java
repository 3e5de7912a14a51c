// Schemas of primitive types: what a producer sends by one, a consumer reads by it; another type is refused.
// Arguments: the service URL, the beginning of the topics' names.

import java.sql.Time;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.Date;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.schema.GenericRecord;

public class PrimitiveClient {
    static PulsarClient client;
    static String prefix;

    static void say(String what) {
        System.out.println("said:" + what);
    }

    static <T> void through(Schema<T> schema, T value) throws Exception {
        String kind = schema.getSchemaInfo().getType().toString();
        String topic = prefix + "-" + kind;
        Schema<?> other = kind.equals("INT64") ? Schema.STRING : Schema.INT64;
        Producer<T> producer = client.newProducer(schema).topic(topic).create();
        producer.send(value);
        client.newProducer(schema).topic(topic).create().close();
        Consumer<T> consumer = client.newConsumer(schema).topic(topic).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        T found = consumer.receive(30, TimeUnit.SECONDS).getValue();
        Consumer<GenericRecord> any = client.newConsumer(Schema.AUTO_CONSUME()).topic(topic).subscriptionName("any")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        Object generic = any.receive(30, TimeUnit.SECONDS).getValue().getNativeObject();
        say(kind + " " + found.equals(value) + " " + generic.equals(value));
        try {
            client.newProducer(other).topic(topic).create();
            say("taken");
        } catch (PulsarClientException.IncompatibleSchemaException refused) {
            say("refused");
        }
        try {
            client.newConsumer(other).topic(topic).subscriptionName("t").subscribe();
            say("taken");
        } catch (PulsarClientException.IncompatibleSchemaException refused) {
            say("refused");
        }
    }

    public static void main(String[] arguments) throws Exception {
        client = PulsarClient.builder().serviceUrl(arguments[0]).build();
        prefix = arguments[1];
        through(Schema.BOOL, true);
        through(Schema.INT8, (byte) -5);
        through(Schema.INT16, (short) -500);
        through(Schema.INT32, -70_000);
        through(Schema.INT64, 1L << 40);
        through(Schema.FLOAT, 1.5f);
        through(Schema.DOUBLE, -2.25);
        through(Schema.DATE, new Date(86_400_000L));
        through(Schema.TIME, new Time(3_600_000L));
        through(Schema.TIMESTAMP, new Timestamp(1_700_000_000_123L));
        through(Schema.INSTANT, Instant.ofEpochSecond(5, 7));
        through(Schema.LOCAL_DATE, LocalDate.of(2026, 11, 29));
        through(Schema.LOCAL_TIME, LocalTime.of(3, 4, 5, 6));
        through(Schema.LOCAL_DATE_TIME, LocalDateTime.of(2026, 11, 29, 3, 4, 5, 6));
        client.close();
        say("done");
        System.exit(0);
    }
}
