import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.*;
import org.apache.rocketmq.client.apis.producer.*;

/**
 * Load of the official gRPC client, for benchmarks: prints one JSON object.
 *   Load5 ENDPOINTS send    TOPIC THREADS SECONDS    single sends with bodies of 1 KiB; two seconds before do not count
 *   Load5 ENDPOINTS consume TOPIC COUNT   SECONDS    a push consumer of a new group, until COUNT have come
 */
public class Load5 {
    static final ClientServiceProvider API = ClientServiceProvider.loadService();

    public static void main(String[] a) throws Exception {
        ClientConfiguration at = ClientConfiguration.newBuilder().setEndpoints(a[0]).enableSsl(false).setRequestTimeout(Duration.ofSeconds(10)).build();
        int amount = Integer.parseInt(a[3]);
        double seconds = Double.parseDouble(a[4]);
        System.out.println(a[1].equals("send") ? send(at, a[2], amount, seconds) : consume(at, a[2], amount, seconds));
    }

    static String send(ClientConfiguration at, String topic, int threads, double seconds) throws Exception {
        Producer producer = API.newProducerBuilder().setClientConfiguration(at).setTopics(topic).build();
        byte[] body = new byte[1024];
        AtomicLong sent = new AtomicLong(), counted = new AtomicLong(), failed = new AtomicLong();
        AtomicBoolean counts = new AtomicBoolean(), over = new AtomicBoolean();
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                while (!over.get()) {
                    try {
                        producer.send(API.newMessageBuilder().setTopic(topic).setBody(body).build());
                        if (counts.get()) counted.incrementAndGet();
                        sent.incrementAndGet();
                    } catch (Exception error) {
                        if (failed.incrementAndGet() < 3) error.printStackTrace();
                    }
                }
            });
            thread.start();
            running.add(thread);
        }
        Thread.sleep(2000);
        counts.set(true);
        long begin = System.nanoTime();
        Thread.sleep((long) (seconds * 1000));
        double took = (System.nanoTime() - begin) / 1e9;
        long count = counted.get();
        over.set(true);
        for (Thread thread : running) thread.join();
        return told(sent.get(), count / took, failed.get());
    }

    static String consume(ClientConfiguration at, String topic, int count, double seconds) throws Exception {
        AtomicLong seen = new AtomicLong(), first = new AtomicLong(), last = new AtomicLong();
        CountDownLatch all = new CountDownLatch(1);
        API.newPushConsumerBuilder().setClientConfiguration(at).setConsumerGroup("load5-" + UUID.randomUUID())
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                first.compareAndSet(0, System.nanoTime());
                if (seen.incrementAndGet() == count) { last.set(System.nanoTime()); all.countDown(); }
                return ConsumeResult.SUCCESS;
            }).build();
        boolean done = all.await((long) (seconds * 1000), TimeUnit.MILLISECONDS);
        double took = ((done ? last.get() : System.nanoTime()) - first.get()) / 1e9;
        return told(seen.get(), seen.get() / took, Math.max(0, count - seen.get()));
    }

    static String told(long messages, double rate, long failed) {
        return String.format(Locale.ROOT, "{\"messages\":%d,\"per_second\":%.1f,\"failed\":%d}", messages, rate, failed);
    }
}
