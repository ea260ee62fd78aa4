import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Requests and replies with the official client, as its examples RequestProducer and ResponseConsumer have it.
 *   RequestReply NAMESRV ask    TOPIC COUNT TIMEOUT_MS   sends COUNT requests; prints each reply, a JSON object a line
 *   RequestReply NAMESRV answer TOPIC COUNT TIMEOUT_MS   answers COUNT requests: "re: " and the body
 * Asks by the one form of request() that waits for its reply: in 5.3.1 to 5.3.3 the others take the answer to their
 * send for the end, and those without a callback tell of a timeout at once (apache/rocketmq #9319, mended in #9608).
 */
public class RequestReply {
    public static void main(String[] args) throws Exception {
        String mode = args[1];
        int count = Integer.parseInt(args[3]);
        long timeoutMs = Long.parseLong(args[4]);
        if (mode.equals("ask")) {
            ask(args[0], args[2], count, timeoutMs);
        } else {
            answer(args[0], args[2], count, timeoutMs);
        }
    }

    static void ask(String namesrv, String topic, int count, long timeoutMs) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("askers");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        for (int i = 0; i < count; i++) {
            CompletableFuture<String> told = new CompletableFuture<>();
            producer.request(new Message(topic, "TagA", ("question " + i).getBytes()), new SelectMessageQueueByHash(), i,
                new RequestCallback() {
                    public void onSuccess(Message reply) {
                        told.complete("\"reply\": \"" + new String(reply.getBody()) + "\", \"topic\": \"" + reply.getTopic() + "\"");
                    }

                    public void onException(Throwable error) {
                        told.complete("\"error\": \"" + String.valueOf(error).replace('"', '\'') + "\"");
                    }
                }, timeoutMs);
            System.out.println("{\"asked\": " + i + ", " + told.get(2 * timeoutMs, TimeUnit.MILLISECONDS) + "}");
        }
        producer.shutdown();
    }

    static void answer(String namesrv, String topic, int count, long timeoutMs) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("answerers");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("answering-" + UUID.randomUUID());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] body = ("re: " + new String(message.getBody())).getBytes();
                    SendResult result = producer.send(MessageUtil.createReplyMessage(message, body), 3000);
                    System.out.println("{\"answered\": \"" + result.getSendStatus() + "\"}");
                    left.countDown();
                } catch (Exception error) {
                    error.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        left.await(timeoutMs, TimeUnit.MILLISECONDS);
        consumer.shutdown();
        producer.shutdown();
    }
}
