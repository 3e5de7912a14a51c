// A classic consumer of a pattern, which looks for topics once an hour: what it hears of earlier, a watch has told it.
// Arguments: the service URL, the pattern. It says "ready", and then the value of each message.

import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

public class PatternClient {
    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                Consumer<byte[]> consumer = client.newConsumer()
                        .topicsPattern(Pattern.compile(arguments[1]))
                        .patternAutoDiscoveryPeriod(1, TimeUnit.HOURS)
                        .subscriptionName("s")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe()) {
            System.out.println("ready");
            while (true) {
                Message<byte[]> message = consumer.receive();
                System.out.println(new String(message.getValue()));
                consumer.acknowledge(message);
            }
        }
    }
}
