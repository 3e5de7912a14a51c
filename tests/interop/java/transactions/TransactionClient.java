// Transactions of a classic client: it consumes and produces within them, and says what a reader of the outcome sees.
// Arguments: the service URL, the prefix of the topics' names.

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

public class TransactionClient {
    static PulsarClient client;

    static Consumer<byte[]> consumer(String topic, SubscriptionType type) throws Exception {
        return client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    static Transaction begin() throws Exception {
        return client.newTransaction().withTransactionTimeout(60, TimeUnit.SECONDS).build().get();
    }

    static List<String> values(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> found = new ArrayList<>();
        while (true) {
            int wait = found.size() < count ? 30000 : 500;
            Message<byte[]> message = consumer.receive(wait, TimeUnit.MILLISECONDS);
            if (message == null) {
                return found;
            }
            found.add(new String(message.getValue()));
        }
    }

    static void say(String what, Object value) {
        System.out.println("said:" + what + "=" + value.toString().replace(" ", ""));
    }

    public static void main(String[] arguments) throws Exception {
        client = PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build();
        for (SubscriptionType type : new SubscriptionType[] {SubscriptionType.Exclusive, SubscriptionType.Shared}) {
            String in = arguments[1] + "-in-" + type, out = arguments[1] + "-out-" + type;
            Producer<byte[]> source = client.newProducer().topic(in).create();
            for (int n = 0; n < 4; n++) {
                source.newMessage().key("k" + n).value(("m" + n).getBytes()).send();
            }
            Producer<byte[]> producer = client.newProducer().topic(out).sendTimeout(0, TimeUnit.SECONDS).create();
            Consumer<byte[]> outcome = consumer(out, SubscriptionType.Exclusive);
            Consumer<byte[]> consumer = consumer(in, type);

            Transaction aborted = begin();
            for (int n = 0; n < 2; n++) {
                Message<byte[]> message = consumer.receive(30, TimeUnit.SECONDS);
                producer.newMessage(aborted).key(message.getKey()).value(("never" + n).getBytes()).send();
                consumer.acknowledgeAsync(message.getMessageId(), aborted).get();
            }
            aborted.abort().get();
            say(type + "-after-abort", values(outcome, 0));
            consumer.close();

            consumer = consumer(in, type);
            Transaction committed = begin();
            for (int n = 0; n < 3; n++) {
                Message<byte[]> message = consumer.receive(30, TimeUnit.SECONDS);
                String value = "of-" + new String(message.getValue());
                producer.newMessage(committed).key(message.getKey()).value(value.getBytes()).send();
                consumer.acknowledgeAsync(message.getMessageId(), committed).get();
            }
            say(type + "-before-commit", values(outcome, 0));
            committed.commit().get();
            say(type + "-after-commit", values(outcome, 3));
            consumer.close();

            consumer = consumer(in, type);
            say(type + "-left", values(consumer, 1));
            try {
                producer.newMessage(committed).value("late".getBytes()).send();
                say(type + "-late", "taken");
            } catch (Exception e) {
                say(type + "-late", "refused");
            }
            consumer.close();
            outcome.close();
            producer.close();
            source.close();
        }
        client.close();
        System.out.println("said:done");
        System.exit(0);
    }
}
