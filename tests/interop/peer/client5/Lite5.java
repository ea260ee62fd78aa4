import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Lite topics with the official gRPC client: Lite5 ENDPOINTS PARENT GROUP FIFO_GROUP EXCLUSIVE_GROUP. The parent takes lite messages, the groups are bound to it; the second consumes in order, of the third one client alone has a child. Last line: JSON with "ok". */
public class Lite5 {
    static final ClientServiceProvider API = ClientServiceProvider.loadService();
    static final Map<String, Object> told = new LinkedHashMap<>();
    static ClientConfiguration at;
    static String parent;
    static Producer producer;
    static boolean ok = true;

    /** A consumer, and what it has seen: "child body attempt". It fails bodies that begin with "bad" at the first time. */
    static class Seen {
        final List<String> all = Collections.synchronizedList(new ArrayList<>());
        final LitePushConsumer consumer;

        Seen(String group) throws ClientException {
            consumer = API.newLitePushConsumerBuilder().setClientConfiguration(at).setConsumerGroup(group).bindTopic(parent)
                .setMessageListener(m -> {
                    byte[] b = new byte[m.getBody().remaining()];
                    m.getBody().get(b);
                    String body = new String(b, StandardCharsets.UTF_8);
                    all.add(m.getLiteTopic().orElse("none") + " " + body + " " + m.getDeliveryAttempt());
                    return body.startsWith("bad") && m.getDeliveryAttempt() == 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                }).build();
        }

        List<String> of(String child) {
            List<String> found = new ArrayList<>();
            synchronized (all) { for (String one : all) if (one.startsWith(child + " ")) found.add(one.substring(child.length() + 1)); }
            return found;
        }
    }

    static void send(String child, String... bodies) throws ClientException {
        for (String body : bodies) {
            Message m = API.newMessageBuilder().setTopic(parent).setLiteTopic(child).setKeys("k-" + body).addProperty("p", "v").setBody(body.getBytes(StandardCharsets.UTF_8)).build();
            producer.send(m);
        }
    }

    static void check(String name, BooleanSupplier wanted, int seconds, Object seen) throws InterruptedException {
        long start = System.currentTimeMillis();
        while (!wanted.getAsBoolean() && System.currentTimeMillis() - start < seconds * 1000L) Thread.sleep(50);
        boolean good = wanted.getAsBoolean();
        if (!good) told.put(name, seen.toString());
        ok &= good;
        System.err.println(name + " " + good + " after " + (System.currentTimeMillis() - start) + " ms");
    }

    static List<String> firsts(String... bodies) {
        List<String> made = new ArrayList<>();
        for (String body : bodies) made.add(body + " 1");
        return made;
    }

    public static void main(String[] a) throws Exception {
        at = ClientConfiguration.newBuilder().setEndpoints(a[0]).enableSsl(false).setRequestTimeout(Duration.ofSeconds(10)).build();
        parent = a[1];
        producer = API.newProducerBuilder().setClientConfiguration(at).setTopics(parent).build();

        // What was sent before a child is subscribed to comes with an offset option that says so, and else not.
        send("old", "o0", "o1", "o2");
        Thread.sleep(1000); // until it is in the queues: MAX is their end
        Seen one = new Seen(a[2]);
        one.consumer.subscribeLite("old", OffsetOption.MIN_OFFSET);
        check("min offset", () -> new TreeSet<>(one.of("old")).equals(new TreeSet<>(firsts("o0", "o1", "o2"))), 30, one.all);
        Seen last = new Seen(a[2] + "2");
        last.consumer.subscribeLite("old", OffsetOption.ofOffset(2));
        check("an offset", () -> last.of("old").equals(firsts("o2")), 30, last.all);

        // Many children, each in its order, with an interest in some of them alone.
        for (int child = 0; child < 5; child++) one.consumer.subscribeLite("c" + child);
        check("set", () -> one.consumer.getLiteTopicSet().equals(Set.of("old", "c0", "c1", "c2", "c3", "c4")), 1, one.all);
        for (int i = 0; i < 8; i++) for (int child = 0; child < 7; child++) send("c" + child, "m" + i);
        List<String> eight = firsts("m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7");
        for (int child = 0; child < 5; child++) { String c = "c" + child; check(c, () -> new TreeSet<>(one.of(c)).equals(new TreeSet<>(eight)) && one.of(c).size() == 8, 30, one.all); }
        check("no others", () -> one.of("c5").isEmpty() && one.of("c6").isEmpty(), 1, one.all);

        // In order: one that fails holds up its child, and no other.
        Seen fifo = new Seen(a[3]);
        fifo.consumer.subscribeLite("f0");
        fifo.consumer.subscribeLite("f1");
        send("f0", "m0", "bad", "m1", "m2");
        send("f1", "m0", "m1");
        check("f1", () -> fifo.of("f1").equals(firsts("m0", "m1")), 30, fifo.all);
        check("f0", () -> fifo.of("f0").equals(List.of("m0 1", "bad 1", "bad 2", "m1 1", "m2 1")), 60, fifo.all);

        // What fails comes again, soon: the client does not say of which child it is.
        one.consumer.subscribeLite("again");
        send("again", "bad");
        check("again", () -> one.of("again").equals(List.of("bad 1", "bad 2")), 40, one.all);

        // Unsubscribed.
        one.consumer.unsubscribeLite("c0");
        send("c0", "late");
        send("c1", "late");
        check("late", () -> one.of("c1").contains("late 1"), 30, one.all);
        Thread.sleep(1000);
        check("gone", () -> one.of("c0").size() == 8, 1, one.all);

        // One client alone has a child of an exclusive group: the other one is told.
        Seen first = new Seen(a[4]), second = new Seen(a[4]);
        first.consumer.subscribeLite("mine");
        send("mine", "m0");
        check("first", () -> first.of("mine").equals(firsts("m0")), 30, first.all);
        second.consumer.subscribeLite("mine");
        check("told", () -> first.consumer.getLiteTopicSet().isEmpty(), 30, first.all);
        send("mine", "m1");
        check("second", () -> second.of("mine").contains("m1 1"), 30, second.all);

        StringBuilder out = new StringBuilder("{\"ok\":" + ok);
        told.forEach((k, v) -> out.append(",\"" + k + "\":\"" + v + "\""));
        System.out.println(out + "}");
        System.exit(ok ? 0 : 1); // consumers are not closed: that waits for the end of a poll
    }
}
