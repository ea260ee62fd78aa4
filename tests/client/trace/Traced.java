import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends, commits and consumes messages with message trace; prints SENT and the id of each, and ends when its input does. */
public class Traced {
    public static void main(String[] arguments) throws Exception {
        String namesrv = arguments[0], topic = arguments[1];
        DefaultMQProducer producer = new DefaultMQProducer("java_pg", true, null);
        producer.setNamesrvAddr(namesrv);
        producer.start();
        Message tagged = new Message(topic, "TagA", "k1 k2", "plain".getBytes(StandardCharsets.UTF_8));
        SendResult first = producer.send(tagged);
        Message delayed = new Message(topic, "delayed".getBytes(StandardCharsets.UTF_8));
        delayed.setDelayTimeLevel(1);
        SendResult second = producer.send(delayed);

        TransactionMQProducer transactions = new TransactionMQProducer("java_tg", null, true, null);
        transactions.setNamesrvAddr(namesrv);
        transactions.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        transactions.start();
        SendResult third = transactions.sendMessageInTransaction(
            new Message(topic, "TagT", "k3", "committed".getBytes(StandardCharsets.UTF_8)), null);

        CountDownLatch consumed = new CountDownLatch(3);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java_cg", true, null);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> consumed.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        consumed.await();
        for (SendResult sent : new SendResult[] {first, second, third}) {
            System.out.println("SENT " + sent.getMsgId());
        }
        System.in.read(); // a shutdown gives traces that wait half a second, and drops the rest
        consumer.shutdown();
        transactions.shutdown();
        producer.shutdown();
    }
}
