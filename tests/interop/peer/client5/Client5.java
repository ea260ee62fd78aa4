import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.*;
import org.apache.rocketmq.client.apis.producer.*;

/** All flows of the official gRPC client: Client5 ENDPOINTS COUNT [AK SK], signed and over TLS with a key. The topics NormalT, FifoT, DelayT and TranT are there, and the group j_fifo consumes in order. Last line: JSON with "ok". */
public class Client5 {
    static final ClientServiceProvider API = ClientServiceProvider.loadService();
    static final java.util.regex.Pattern others = java.util.regex.Pattern.compile(".*[- ].*"); // bodies of other clients' programs
    static ClientConfiguration at;

    static Message made(String topic, String body, String group, long deliver) {
        MessageBuilder b = API.newMessageBuilder().setTopic(topic).setTag("a").setKeys("k-" + body).addProperty("p", "v").setBody(body.getBytes(StandardCharsets.UTF_8));
        if (group != null) b.setMessageGroup(group);
        if (deliver > 0) b.setDeliveryTimestamp(deliver);
        return b.build();
    }

    static List<String> pushed(String topic, String group, Collection<String> wanted, int seconds) throws Exception {
        List<String> seen = Collections.synchronizedList(new ArrayList<>());
        PushConsumer c = API.newPushConsumerBuilder().setClientConfiguration(at).setConsumerGroup(group)
            .setSubscriptionExpressions(Collections.singletonMap(topic, new FilterExpression("a", FilterExpressionType.TAG)))
            .setMessageListener(m -> { byte[] b = new byte[m.getBody().remaining()]; m.getBody().get(b); String s = new String(b, StandardCharsets.UTF_8); if (!others.matcher(s).matches()) seen.add(s); return ConsumeResult.SUCCESS; }).build();
        for (int i = 0; i < seconds * 10 && seen.size() < wanted.size(); i++) Thread.sleep(100);
        Thread.sleep(500); // not closed: that waits for the end of a poll, 20 s
        return new ArrayList<>(seen);
    }

    public static void main(String[] a) throws Exception {
        int n = Integer.parseInt(a[1]);
        ClientConfigurationBuilder where = ClientConfiguration.newBuilder().setEndpoints(a[0]).enableSsl(a.length > 2).setRequestTimeout(Duration.ofSeconds(10));
        if (a.length > 2) where.setCredentialProvider(new StaticSessionCredentialsProvider(a[2], a[3]));
        at = where.build();
        Map<String, Object> told = new TreeMap<>();
        boolean ok = true;
        Producer p = API.newProducerBuilder().setClientConfiguration(at).setTopics("NormalT", "FifoT", "DelayT", "TranT")
            .setTransactionChecker(m -> TransactionResolution.COMMIT).build();
        List<String> normal = new ArrayList<>(), fifo = new ArrayList<>();
        for (int i = 0; i < n; i++) { p.send(made("NormalT", "n" + i, null, 0)); normal.add("n" + i); p.send(made("FifoT", "f" + i, "one", 0)); fifo.add("f" + i); }
        SimpleConsumer s = API.newSimpleConsumerBuilder().setClientConfiguration(at).setConsumerGroup("j_simple").setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap("NormalT", FilterExpression.SUB_ALL)).build();
        Set<String> got = new TreeSet<>();
        for (int i = 0; i < 20 && got.size() < n; i++)
            for (MessageView m : s.receive(16, Duration.ofSeconds(30))) { byte[] b = new byte[m.getBody().remaining()]; m.getBody().get(b); if (!others.matcher(new String(b)).matches()) got.add(new String(b)); if (b.length == 2 && b[1] == '0') s.changeInvisibleDuration(m, Duration.ofSeconds(40)); else s.ack(m); }
        s.close();
        told.put("simple", got.size()); ok &= got.equals(new TreeSet<>(normal));
        List<String> pushedFifo = pushed("FifoT", "j_fifo", fifo, 60);
        told.put("fifo", pushedFifo); ok &= pushedFifo.equals(fifo);
        long due = System.currentTimeMillis() + 3000;
        SendReceipt r = p.send(made("DelayT", "late", null, due));
        List<String> late = pushed("DelayT", "j_delay", List.of("late"), 60);
        told.put("delay", late); ok &= late.equals(List.of("late")) && System.currentTimeMillis() >= due;
        for (String end : List.of("commit", "rollback", "open")) {
            Transaction t = p.beginTransaction();
            p.send(made("TranT", end, null, 0), t);
            if (end.equals("commit")) t.commit(); else if (end.equals("rollback")) t.rollback();
        }
        Set<String> tran = new TreeSet<>(pushed("TranT", "j_tran", List.of("commit", "open"), 60));
        told.put("tran", tran); ok &= tran.equals(Set.of("commit", "open"));
        p.close();
        StringBuilder out = new StringBuilder("{\"ok\":" + ok);
        told.forEach((k, v) -> out.append(",\"" + k + "\":\"" + v + "\""));
        System.out.println(out + "}");
        System.exit(ok ? 0 : 1);
    }
}
