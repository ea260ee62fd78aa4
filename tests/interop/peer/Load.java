import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Load of the official client, for benchmarks: prints one JSON object.
 *   Load NAMESRV send    TOPIC THREADS SECONDS        single sends with bodies of 1 KiB
 *   Load NAMESRV batch   TOPIC THREADS SECONDS        in batches of 32
 *   Load NAMESRV transaction TOPIC THREADS SECONDS    single sends in transactions that are committed at once
 *   Load NAMESRV consume TOPIC COUNT   SECONDS        a new group, from the first message, until COUNT have come
 *   Load NAMESRV pop     TOPIC COUNT   SECONDS GROUP  the same with a group that the broker knows to pop
 *   Load NAMESRV filter  TOPIC COUNT   SECONDS        sends twice COUNT; a group that was there before, and whose SQL
 *                                                     filter half of them match, is given COUNT
 * Sends warm up for two seconds that do not count.
 */
public class Load {
    static final int BATCH = 32;
    static final long WARM_UP_MS = 2000;

    public static void main(String[] args) throws Exception {
        String namesrv = args[0], mode = args[1], topic = args[2];
        int amount = Integer.parseInt(args[3]);
        double seconds = Double.parseDouble(args[4]);
        if (mode.equals("consume") || mode.equals("pop")) {
            consume(namesrv, topic, amount, seconds, mode.equals("pop") ? args[5] : null);
        } else if (mode.equals("filter")) {
            filter(namesrv, topic, amount, seconds);
        } else {
            boolean transaction = mode.equals("transaction");
            DefaultMQProducer producer = transaction ? committing() : new DefaultMQProducer("load-" + UUID.randomUUID());
            produce(producer, namesrv, topic, amount, seconds, mode.equals("batch") ? BATCH : 1);
        }
    }

    static DefaultMQProducer committing() {
        TransactionMQProducer producer = new TransactionMQProducer("load-" + UUID.randomUUID());
        producer.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        return producer;
    }

    static void produce(DefaultMQProducer producer, String namesrv, String topic, int threads, double seconds, int batch) throws Exception {
        producer.setNamesrvAddr(namesrv);
        producer.setCompressMsgBodyOverHowmuch(1 << 20);
        producer.start();
        byte[] body = new byte[1024];
        Arrays.fill(body, (byte) 'x');
        producer.setSendMsgTimeout(10000);
        producer.send(new Message(topic, "TagA", body));
        AtomicLong sent = new AtomicLong(), failed = new AtomicLong();
        AtomicBoolean counts = new AtomicBoolean(), ends = new AtomicBoolean();
        List<Thread> senders = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                while (!ends.get()) {
                    try {
                        SendResult result = producer instanceof TransactionMQProducer
                            ? producer.sendMessageInTransaction(new Message(topic, "TagA", body), null)
                            : batch == 1
                            ? producer.send(new Message(topic, "TagA", body), 10000)
                            : producer.send(batchOf(topic, body, batch), 10000);
                        if (result.getSendStatus() != SendStatus.SEND_OK) {
                            failed.incrementAndGet();
                        } else if (counts.get()) {
                            sent.addAndGet(batch);
                        }
                    } catch (Exception error) {
                        if (failed.incrementAndGet() == 1) {
                            error.printStackTrace();
                        }
                    }
                }
            });
            thread.start();
            senders.add(thread);
        }
        Thread.sleep(WARM_UP_MS);
        long begin = System.nanoTime();
        counts.set(true);
        Thread.sleep((long) (seconds * 1000));
        counts.set(false);
        double took = (System.nanoTime() - begin) / 1e9;
        ends.set(true);
        for (Thread thread : senders) {
            thread.join();
        }
        producer.shutdown();
        report(sent.get(), failed.get(), took);
    }

    static List<Message> batchOf(String topic, byte[] body, int count) {
        List<Message> messages = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            messages.add(new Message(topic, "TagA", body));
        }
        return messages;
    }

    static void consume(String namesrv, String topic, int count, double seconds, String popGroup) throws Exception {
        DefaultMQPushConsumer consumer = consumer(namesrv);
        if (popGroup != null) {
            consumer.setConsumerGroup(popGroup);
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false); // 4.9 has none
        }
        consumer.subscribe(topic, "*");
        Received received = new Received(consumer, count);
        consumer.start();
        received.await(seconds);
    }

    static void filter(String namesrv, String topic, int count, double seconds) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("load-" + UUID.randomUUID());
        producer.setNamesrvAddr(namesrv);
        producer.start();
        producer.send(new Message(topic, "TagA", "none that matches".getBytes()), 10000);
        DefaultMQPushConsumer consumer = consumer(namesrv);
        consumer.subscribe(topic, MessageSelector.bySql("price < 50 AND region IN ('EU', 'US')"));
        Received received = new Received(consumer, count);
        consumer.start();
        consumer.suspend(); // its filter is known when the messages come: the broker may have bit maps of them
        byte[] body = new byte[1024];
        Arrays.fill(body, (byte) 'x');
        for (int sent = 0; sent < 2 * count; sent += BATCH) {
            List<Message> batch = batchOf(topic, body, Math.min(BATCH, 2 * count - sent));
            for (int i = 0; i < batch.size(); i++) {
                batch.get(i).putUserProperty("price", String.valueOf((sent + i) % 100));
                batch.get(i).putUserProperty("region", i % 2 == 0 ? "EU" : "US");
            }
            producer.send(batch, 10000);
        }
        producer.shutdown();
        Thread.sleep(WARM_UP_MS);
        received.begin();
        consumer.resume();
        received.await(seconds);
    }

    /** A new group that begins with the first message. */
    static DefaultMQPushConsumer consumer(String namesrv) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("load-" + UUID.randomUUID());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.setPullBatchSize(32);
        return consumer;
    }

    /** What a consumer is given. */
    static class Received {
        final DefaultMQPushConsumer consumer;
        final int count;
        final AtomicLong got = new AtomicLong(), first = new AtomicLong(), last = new AtomicLong();
        final CountDownLatch complete = new CountDownLatch(1);

        Received(DefaultMQPushConsumer consumer, int count) {
            this.consumer = consumer;
            this.count = count;
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                first.compareAndSet(0, System.nanoTime());
                last.set(System.nanoTime());
                if (got.addAndGet(messages.size()) >= count) {
                    complete.countDown();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }

        /** Nothing that came before counts. */
        void begin() {
            if (got.get() != 0) {
                throw new IllegalStateException(got.get() + " came too early");
            }
        }

        void await(double seconds) throws InterruptedException {
            complete.await((long) (seconds * 1000), TimeUnit.MILLISECONDS);
            long failed = Math.max(0, count - got.get());
            double took = (last.get() - first.get()) / 1e9;
            consumer.shutdown();
            report(got.get(), failed, took);
        }
    }

    static void report(long messages, long failed, double seconds) {
        System.out.println("{\"messages\": " + messages + ", \"failed\": " + failed + ", \"seconds\": " + seconds
            + ", \"per_second\": " + Math.round(messages / Math.max(seconds, 1e-9)) + "}");
    }
}
