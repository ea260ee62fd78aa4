import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.*;

/**
 * The official client with light queues (LMQ) and inner batches; what it is told or given, a JSON object a line.
 *   send NAMESRV TOPIC BATCH_TOPIC SEED COUNT   messages for light queues %LMQ%0 … %LMQ%3 to TOPIC, inner batches and single ones to BATCH_TOPIC
 *   pull NAMESRV TOPIC BATCH_TOPIC OFFSET       all messages of TOPIC, of BATCH_TOPIC from OFFSET on, and of the light queues
 *   inner-batch NAMESRV TOPIC                   what BatchSendIT#testBatchSend_SysInnerBatch of the original's tests asserts
 */
public class Variants {
    static final int LIGHT_QUEUES = 4;

    public static void main(String[] a) throws Exception {
        switch (a[0]) {
            case "send" -> send(a[1], a[2], a[3], Long.parseLong(a[4]), Integer.parseInt(a[5]));
            case "pull" -> pull(a[1], a[2], a[3], Long.parseLong(a[4]));
            case "inner-batch" -> innerBatch(a[1], a[2]);
            default -> throw new IllegalArgumentException(a[0]);
        }
    }

    static DefaultMQProducer producer(String namesrv) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("variants");
        producer.setNamesrvAddr(namesrv); producer.setSendMsgTimeout(60000); producer.start();
        return producer;
    }

    static DefaultMQPullConsumer consumer(String namesrv, String group, String topic) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(namesrv); consumer.setRegisterTopics(Set.of(topic)); consumer.start();
        return consumer;
    }

    static void send(String namesrv, String topic, String batchTopic, long seed, int count) throws Exception {
        Random random = new Random(seed);
        DefaultMQProducer producer = producer(namesrv);
        for (int i = 0; i < count; i++) {
            List<String> names = new ArrayList<>();
            for (int n = 0; n < LIGHT_QUEUES; n++) if (random.nextInt(2) == 0) names.add("%LMQ%" + n);
            Message message = new Message(topic, "Tag" + i % 3, "k" + i, (seed + " light " + i).getBytes(StandardCharsets.UTF_8));
            if (!names.isEmpty()) message.putUserProperty(MessageConst.PROPERTY_INNER_MULTI_DISPATCH, String.join(",", names));
            told(producer.send(message), topic, 1);
            if (i % 3 == 0) { told(producer.send(new Message(batchTopic, "TagS", "s" + i, (seed + " single " + i).getBytes(StandardCharsets.UTF_8))), batchTopic, 1); continue; }
            List<Message> batch = new ArrayList<>();
            for (int j = 0; j <= random.nextInt(6); j++) batch.add(new Message(batchTopic, "TagB", "b" + i, (seed + " inner " + i + " " + j).getBytes(StandardCharsets.UTF_8)));
            told(producer.send(batch), batchTopic, batch.size());
        }
        producer.shutdown();
    }

    static void told(SendResult sent, String topic, int count) {
        if (sent.getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException(sent.toString());
        System.out.printf("{\"topic\": \"%s\", \"queue_id\": %d, \"queue_offset\": %d, \"count\": %d}%n", topic, sent.getMessageQueue().getQueueId(), sent.getQueueOffset(), count);
    }

    static void pull(String namesrv, String topic, String batchTopic, long offset) throws Exception {
        DefaultMQPullConsumer consumer = consumer(namesrv, "%LMQ%variants", topic);
        String broker = null;
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) { broker = queue.getBrokerName(); all(consumer, queue, 0); }
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(batchTopic)) all(consumer, queue, offset);
        for (int n = 0; n < LIGHT_QUEUES; n++) all(consumer, new MessageQueue("%LMQ%" + n, broker, 0), 0);
        consumer.shutdown();
    }

    static void all(DefaultMQPullConsumer consumer, MessageQueue queue, long offset) throws Exception {
        while (true) {
            PullResult result = consumer.pull(queue, "*", offset, 32);
            if (result.getPullStatus() == PullStatus.FOUND)
                for (MessageExt message : result.getMsgFoundList())
                    System.out.printf("{\"queue\": \"%s\", \"queue_id\": %d, \"topic\": \"%s\", \"queue_offset\": %d, \"places\": \"%s\", \"tags\": \"%s\", \"body\": \"%s\"}%n",
                        queue.getTopic(), queue.getQueueId(), message.getTopic(), message.getQueueOffset(), message.getProperty(MessageConst.PROPERTY_INNER_MULTI_QUEUE_OFFSET), message.getTags(), new String(message.getBody(), StandardCharsets.UTF_8));
            offset = result.getNextBeginOffset();
            if (offset >= result.getMaxOffset()) break;
        }
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, offset, false);
    }

    static void innerBatch(String namesrv, String topic) throws Exception {
        DefaultMQProducer producer = producer(namesrv);
        MessageQueue queue = producer.fetchPublishMessageQueues(topic).iterator().next();
        int batches = 10, messages = 10;
        DefaultMQPullConsumer consumer = consumer(namesrv, "group", topic);
        same(-1L, consumer.minOffset(queue)); same(0L, consumer.maxOffset(queue));
        for (int i = 0; i < batches; i++) {
            List<Message> list = new ArrayList<>();
            for (int j = 0; j < messages; j++) list.add(new Message(topic, UUID.randomUUID().toString().getBytes(StandardCharsets.UTF_8)));
            SendResult sent = producer.send(list, queue);
            same(SendStatus.SEND_OK, sent.getSendStatus()); same(queue.getQueueId(), sent.getMessageQueue().getQueueId());
            same((long) i * messages, sent.getQueueOffset()); same(1, sent.getMsgId().split(",").length);
        }
        PullResult result = consumer.pullBlockIfNotFound(queue, "*", 5, batches * messages);
        same(PullStatus.FOUND, result.getPullStatus()); same(0L, result.getMinOffset()); same((long) batches * messages, result.getMaxOffset());
        same(batches * messages, result.getMsgFoundList().size());
        MessageExt first = null;
        for (int i = 0; i < result.getMsgFoundList().size(); i++) {
            MessageExt one = result.getMsgFoundList().get(i);
            if (i % messages == 0) first = one;
            same((long) i, one.getQueueOffset()); same(topic, one.getTopic()); same(queue.getQueueId(), one.getQueueId());
            same(first.getBornHostString(), one.getBornHostString()); same(first.getBornTimestamp(), one.getBornTimestamp());
            same(first.getStoreTimestamp(), one.getStoreTimestamp());
        }
        producer.shutdown(); consumer.shutdown();
        System.out.println("inner-batch: as asserted");
    }

    static void same(Object expected, Object actual) {
        if (!expected.equals(actual)) throw new IllegalStateException("expected " + expected + ", not " + actual);
    }
}
