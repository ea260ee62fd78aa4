import java.io.File;
import java.nio.ByteBuffer;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.*;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.*;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Pulls every queue of a store from its begin to its end, as a broker answers pulls, and prints what a consumer is given. args: root [key=value...]. */
public class ReadQueues {
    static final int BATCHED = MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG;

    /** As PullAPIWrapper#processPullResult does. */
    static List<MessageExt> given(GetMessageResult r) throws Exception {
        List<MessageExt> given = new ArrayList<>();
        for (ByteBuffer b : r.getMessageBufferList())
            for (MessageExt m : MessageDecoder.decodesBatch(b, true, true, true))
                if ((m.getSysFlag() & BATCHED) == BATCHED) MessageDecoder.decodeMessage(m, given); else given.add(m);
        return given;
    }

    public static void main(String[] a) throws Exception {
        MessageStoreConfig c = new MessageStoreConfig();
        c.setStorePathRootDir(a[0]); c.setStorePathCommitLog(a[0] + "/commitlog"); c.setHaListenPort(0); c.setTimerWheelEnable(false);
        Properties p = new Properties();
        for (int i = 1; i < a.length; i++) p.setProperty(a[i].split("=", 2)[0], a[i].split("=", 2)[1]);
        MixAll.properties2Object(p, c);
        BrokerConfig b = new BrokerConfig();
        ConcurrentHashMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (String t : new File(a[0], "consumequeue").list()) topics.put(t, new TopicConfig(t, 1024, 1024));
        DefaultMessageStore s = new DefaultMessageStore(c, new BrokerStatsManager(b), null, b, topics);
        if (!s.load()) throw new AssertionError("not loaded");
        s.start();
        while (s.dispatchBehindBytes() > 0) Thread.sleep(20);
        for (String t : topics.keySet())
            for (String q : new File(a[0], "consumequeue/" + t).list()) {
                int id = Integer.parseInt(q); long at = s.getMinOffsetInQueue(t, id), end = s.getMaxOffsetInQueue(t, id);
                while (at < end) {
                    GetMessageResult r = s.getMessage("G", t, id, at, 32, null);
                    for (MessageExt m : given(r))
                        System.out.printf("{\"topic\": \"%s\", \"queue_id\": %d, \"queue_offset\": %d, \"physical_offset\": %d}%n", m.getTopic(), m.getQueueId(), m.getQueueOffset(), m.getCommitLogOffset());
                    long next = r.getNextBeginOffset(); r.release();
                    if (next <= at) break;
                    at = next;
                }
            }
        s.shutdown();
    }
}
