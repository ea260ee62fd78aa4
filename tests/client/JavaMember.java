import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** A consumer of the original, which prints what it gets: NAMESRV GROUP TOPIC hash|averagely orderly|concurrently. */
public class JavaMember {
    public static void main(String[] arguments) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[1]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAllocateMessageQueueStrategy(arguments[3].equals("hash")
            ? new AllocateMessageQueueConsistentHash() : new AllocateMessageQueueAveragely());
        consumer.subscribe(arguments[2], "*");
        if (arguments[4].equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (List<MessageExt> messages, ConsumeOrderlyContext context) -> {
                print(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (List<MessageExt> messages, ConsumeConcurrentlyContext context) -> {
                print(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        System.out.println("STARTED");
        Thread.sleep(Long.MAX_VALUE);
    }

    private static synchronized void print(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            System.out.println("GOT " + message.getQueueId() + " " + new String(message.getBody()));
        }
    }
}
