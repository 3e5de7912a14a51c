// A schema of type PROTOBUF_NATIVE: what a producer sends by it, a consumer reads by it; another message is refused.
// Arguments: the service URL, the topic.

import com.google.protobuf.Duration;
import com.google.protobuf.Timestamp;
import com.google.protobuf.UInt64Value;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

public class ProtobufClient {
    static void say(String what) {
        System.out.println("said:" + what);
    }

    public static void main(String[] arguments) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
        Schema<Timestamp> schema = Schema.PROTOBUF_NATIVE(Timestamp.class);
        Producer<Timestamp> producer = client.newProducer(schema).topic(arguments[1]).create();
        for (int n = 0; n < 3; n++) {
            producer.send(Timestamp.newBuilder().setSeconds(1000 + n).setNanos(n).build());
        }
        Consumer<Timestamp> consumer = client.newConsumer(schema).topic(arguments[1]).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        for (int n = 0; n < 3; n++) {
            Message<Timestamp> message = consumer.receive(30, TimeUnit.SECONDS);
            say(message.getValue().getSeconds() + "." + message.getValue().getNanos());
        }
        try {
            client.newProducer(Schema.PROTOBUF_NATIVE(Duration.class)).topic(arguments[1]).create();
            say("taken");
        } catch (PulsarClientException.IncompatibleSchemaException refused) {
            say("refused");
        }
        try {
            client.newConsumer(Schema.PROTOBUF_NATIVE(UInt64Value.class)).topic(arguments[1]).subscriptionName("t")
                    .subscribe();
            say("taken");
        } catch (PulsarClientException.IncompatibleSchemaException refused) {
            say("refused");
        }
        client.close();
        say("done");
        System.exit(0);
    }
}
