import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The official push consumer: prints each message that it is given, a JSON object a line.
 *   Consume NAMESRV TOPICS COUNT SECONDS   a new group, from the first messages of the topics (separated by commas),
 *                                          until COUNT different ones have come, and two seconds more
 */
public class Consume {
    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("consume-" + UUID.randomUUID());
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        for (String topic : args[1].split(",")) consumer.subscribe(topic, "*");
        CountDownLatch missing = new CountDownLatch(Integer.parseInt(args[2]));
        Set<String> seen = ConcurrentHashMap.newKeySet();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                tell(message);
                if (seen.add(message.getTopic() + " " + message.getQueueId() + " " + message.getQueueOffset())) missing.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        missing.await(Long.parseLong(args[3]), TimeUnit.SECONDS);
        Thread.sleep(2000);
        consumer.shutdown();
    }

    static synchronized void tell(MessageExt message) {
        CRC32 crc = new CRC32();
        crc.update(message.getBody());
        System.out.printf("{\"topic\": \"%s\", \"queue_id\": %d, \"queue_offset\": %d, \"physical_offset\": %d, \"uniq_key\": \"%s\", \"body_crc\": %d}%n",
            message.getTopic(), message.getQueueId(), message.getQueueOffset(), message.getCommitLogOffset(), message.getMsgId(), crc.getValue());
    }
}
