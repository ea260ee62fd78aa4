import java.io.*;
import java.lang.reflect.Field;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import org.apache.rocketmq.common.*;
import org.apache.rocketmq.common.attribute.*;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.*;
import org.apache.rocketmq.store.index.IndexService;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.RocksDBConsumeQueueStore;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Plays the lives of many stores with Apache RocketMQ's own DefaultMessageStore, in one process. args: threads.
 * Reads the path of a script a line, answers "PATH<TAB>ok" or "PATH<TAB>error". A script has a command a line, its words parted by tabs:
 *   open ROOT [KEY=VALUE…]                     open the store as a broker does
 *   put TOPIC QUEUE COUNT BODY_BYTES [NAME=VALUE…]   store messages with these properties; "#" in a value is the number of the message
 *   clock MS                                   the store time of the next messages (needs duplicationEnable=true); each is 7 ms later than the one before
 *   delete TOPIC                               delete a topic's queues, as a broker does with the topic
 *   skip TOPIC QUEUE COUNT                     count a queue's next offset up, so that its messages have a gap between them
 *   expire COUNT                               delete the first COUNT files of the log, of a closed store
 *   clean                                      delete the files of queues and Index whose messages have expired, as a broker does after a minute
 *   kill ROOT                                  a picture of the open store as a killed process leaves it, at ROOT; then close the store
 *   lag ROOT                                   a picture of the open store, at ROOT: of its queues and Index, when "killbehind" follows
 *   killbehind ROOT                            a picture of the log alone, at ROOT, so that it is that of a process that was killed before it dispatched what came after "lag"; then close the store
 *   tear ROOT COUNT HOW                        take the last COUNT messages of the store that was killed from the log at ROOT: HOW "zeros", or "flip", a bit of the first of them, so that the others stay behind the log's end
 *   look PATH                                  look up each unit's message, and write the physical offset at which the open store's log ends; the answer is "unsound …" where a unit names no message of its queue
 *   close                                      close the store
 *   copy FROM TO                               copy a directory
 */
public class Lives {
    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.broker.diskSpaceWarningLevelRatio", "0.99"); // of a full disk a broker deletes
        System.setProperty("rocketmq.broker.diskSpaceCleanForciblyRatio", "0.99");
        PrintStream answers = System.out;
        System.setOut(System.err);
        stats = new BrokerStatsManager(new BrokerConfig());
        ExecutorService threads = Executors.newFixedThreadPool(Integer.parseInt(args[0]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) {
            String script = line;
            threads.submit(() -> {
                String answer = "ok";
                Lives life = new Lives();
                try {
                    for (String step : Files.readAllLines(Paths.get(script))) {
                        life.play(step.split("\t", -1));
                    }
                    if (life.unsound != null) answer = "unsound " + life.unsound;
                } catch (NotLoadedException error) {
                    answer = "unsound: not loaded";
                } catch (Throwable error) {
                    StringWriter text = new StringWriter();
                    error.printStackTrace(new PrintWriter(text));
                    answer = text.toString().replace('\n', ' ').replace('\t', ' ');
                } finally {
                    try {
                        life.close();
                    } catch (Throwable error) {
                        if (answer.equals("ok")) answer = error.toString();
                    }
                }
                synchronized (answers) {
                    answers.println(script + "\t" + answer);
                    answers.flush();
                }
            });
        }
        threads.shutdown();
        threads.awaitTermination(1, TimeUnit.HOURS);
    }

    /** A torn store that RocketMQ itself does not load: ConsumeQueue#correctMinOffset fails where a queue is cut to nothing. */
    private static final class NotLoadedException extends Exception { }

    private static BrokerStatsManager stats; // of all stores: each of its own would leave four threads behind
    private static final int PATIENCE_MS = 300_000; // of a machine with much else to do

    private DefaultMessageStore store;
    private MessageStoreConfig config;
    private long clock;
    private int number;
    private long last; // physical offset of the message that was put last, and commits nothing
    private String unsound;
    private long end; // of the log of the store that was closed last

    private void play(String[] words) throws Exception {
        String[] rest = words.length > 2 ? Arrays.copyOfRange(words, 2, words.length) : new String[0];
        switch (words[0]) {
            case "open": open(words[1], rest); break;
            case "put": put(words[1], rest); break;
            case "clock": clock = Long.parseLong(words[1]); break;
            case "skip": skip(words[1], Integer.parseInt(words[2]), Short.parseShort(words[3])); break;
            case "delete": settle(); store.deleteTopics(Collections.singleton(words[1])); break;
            case "expire": expire(Integer.parseInt(words[1])); break;
            case "clean": settle(); clean(); break;
            case "tear": tear(Paths.get(words[1], "commitlog"), Integer.parseInt(words[2]), words[3].equals("zeros")); break;
            case "look": look(); Files.writeString(Paths.get(words[1]), Long.toString(store.getMaxPhyOffset())); break;
            case "kill": settle(); copy(Paths.get(config.getStorePathRootDir()), Paths.get(words[1])); close(); break;
            case "lag": settle(); copy(Paths.get(config.getStorePathRootDir()), Paths.get(words[1])); break;
            case "killbehind": settle(); copy(Paths.get(config.getStorePathCommitLog()), Paths.get(words[1], "commitlog")); close(); break;
            case "close": close(); break;
            case "copy": copy(Paths.get(words[1]), Paths.get(words[2])); break;
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    private void open(String root, String[] settings) throws Exception {
        config = new MessageStoreConfig();
        config.setStorePathRootDir(root); config.setStorePathCommitLog(root + "/commitlog"); config.setHaListenPort(0); config.setTimerWheelEnable(false);
        config.setMaxMessageSize(64 * 1024); // each thread that puts messages into a store takes memory for one of this size
        Properties properties = new Properties();
        for (String setting : settings) properties.setProperty(setting.split("=", 2)[0], setting.split("=", 2)[1]);
        MixAll.properties2Object(properties, config);
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (String topic : properties.getProperty("batchTopics", "").split(",")) {
            TopicConfig batch = new TopicConfig(topic);
            batch.getAttributes().put(TopicAttributes.QUEUE_TYPE_ATTRIBUTE.getName(), CQType.BatchCQ.toString());
            if (!topic.isEmpty()) topics.put(topic, batch);
        }
        BrokerConfig broker = new BrokerConfig();
        MixAll.properties2Object(properties, broker);
        synchronized (Lives.class) { // StoreStatsService fills a static TreeMap
            store = config.isEnableRocksDBStore() ? new RocksDBMessageStore(config, stats, null, broker, topics) : new DefaultMessageStore(config, stats, null, broker, topics);
        }
        IndexFiles.createApart(store);
        if (!store.load()) {
            store = null; // it has no dispatch to wait for
            throw new NotLoadedException();
        }
        store.start();
        // What a broker cleans after a minute a store of a busy machine would lose at a moment of chance: see "clean".
        ((ExecutorService) member("scheduledCleanQueueExecutorService")).shutdownNow();
        if (config.isDuplicationEnable()) store.setConfirmOffset(store.getMaxPhyOffset());
        settle();
    }

    private void put(String topic, String[] words) throws Exception {
        byte[] body = new byte[Integer.parseInt(words[2])];
        for (int i = 0; i < Integer.parseInt(words[1]); i++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(topic); message.setQueueId(Integer.parseInt(words[0]));
            Arrays.fill(body, (byte) ('a' + number % 26)); message.setBody(body.clone());
            int delay = 0;
            for (int j = 3; j < words.length; j++) {
                String[] property = words[j].split("=", 2);
                if (property[0].equals("@COMMIT")) { // of the message that was put last, a half message
                    message.setSysFlag(MessageSysFlag.TRANSACTION_COMMIT_TYPE); message.setPreparedTransactionOffset(last);
                    continue;
                }
                MessageAccessor.putProperty(message, property[0], property[1].replace("#", Integer.toString(number)));
                if (property[0].equals(MessageConst.PROPERTY_DELAY_TIME_LEVEL)) delay = Integer.parseInt(property[1]);
            }
            if (config.isDuplicationEnable()) {
                MessageAccessor.putProperty(message, MessageConst.DUP_INFO, "0_0");
                message.setStoreTimestamp(clock += 7);
            }
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(TopicFilterType.SINGLE_TAG, message.getTags()));
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(new InetSocketAddress("127.0.0.1", 4711)); message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
            PutMessageResult result = store.putMessage(message);
            if (!result.isOk()) throw new IllegalStateException(result.toString());
            if (config.isDuplicationEnable()) store.setConfirmOffset(store.getMaxPhyOffset());
            if (message.getSysFlag() == 0) last = result.getAppendMessageResult().getWroteOffset();
            number++;
        }
    }

    private void skip(String topic, int queueId, short count) throws Exception {
        settle();
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic); message.setQueueId(queueId);
        store.assignOffset(message);
        store.increaseOffset(message, count);
    }

    private void settle() throws Exception {
        await(() -> store.dispatchBehindBytes() <= 0);
        // A queue in RocksDB is written by a thread of its own (RocksGroupCommitService).
        if (config.isEnableRocksDBStore()) await(() -> ((RocksDBConsumeQueueStore) store.getQueueStore()).getMaxPhyOffsetInConsumeQueue() >= store.getMaxPhyOffset());
    }

    private static void await(Callable<Boolean> condition) throws Exception {
        for (int i = 0; i < PATIENCE_MS && !condition.call(); i++) Thread.sleep(1);
        if (!condition.call()) throw new IllegalStateException("dispatch is behind");
    }

    private void clean() throws Exception {
        long least = store.getMinPhyOffset();
        for (ConcurrentMap<Integer, ConsumeQueueInterface> queues : store.getConsumeQueueTable().values()) {
            for (ConsumeQueueInterface queue : queues.values()) queue.deleteExpiredFile(least);
        }
        ((IndexService) member("indexService")).deleteExpiredFile(least);
    }

    private Object member(String name) throws ReflectiveOperationException {
        Field field = DefaultMessageStore.class.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(store);
    }

    private void look() {
        try { lookUp(); } catch (RuntimeException error) { unsound = error.toString(); } // of a batch queue without a file, say
    }

    private void lookUp() {
        for (ConcurrentMap<Integer, ConsumeQueueInterface> queues : store.getConsumeQueueTable().values()) {
            for (ConsumeQueueInterface queue : queues.values()) {
                for (long at = queue.getMinOffsetInQueue(); at < queue.getMaxOffsetInQueue(); at++) {
                    CqUnit unit = queue.get(at);
                    if (unit == null || unit.getPos() < store.getMinPhyOffset() || unit.getSize() == Integer.MAX_VALUE) continue;
                    MessageExt message = store.lookMessageByOffset(unit.getPos(), unit.getSize());
                    // With duplicationEnable 5.3.3 sometimes dispatches the first record with a size that is not its own.
                    if (!isOf(queue, message) || message.getStoreSize() != unit.getSize()) unsound = queue.getTopic() + "/" + queue.getQueueId() + " " + unit;
                }
            }
        }
    }

    private static boolean isOf(ConsumeQueueInterface queue, MessageExt message) {
        if (message == null) return false;
        if (message.getTopic().equals(queue.getTopic())) return message.getQueueId() == queue.getQueueId();
        String light = message.getProperty(MessageConst.PROPERTY_INNER_MULTI_DISPATCH);
        return light != null && Arrays.asList(light.split(MixAll.LMQ_DISPATCH_SEPARATOR)).contains(queue.getTopic());
    }

    private void tear(Path log, int count, boolean isZeroed) throws IOException {
        Deque<Long> records = new ArrayDeque<>();
        List<Path> files;
        try (Stream<Path> all = Files.list(log)) { files = all.sorted().collect(Collectors.toList()); }
        for (Path file : files) {
            long first = Long.parseLong(file.getFileName().toString());
            ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(file));
            for (int at = 0; at + 8 <= bytes.capacity() && first + at < end; at += bytes.getInt(at)) {
                if (bytes.getInt(at) <= 0 || bytes.getInt(at + 4) == CommitLog.BLANK_MAGIC_CODE) break;
                records.add(first + at);
                if (records.size() > count) records.remove();
            }
        }
        if (records.isEmpty()) return;
        for (Path file : files) {
            long first = Long.parseLong(file.getFileName().toString()), at = Math.max(0, records.peek() - first);
            byte[] bytes = Files.readAllBytes(file);
            if (isZeroed && at < bytes.length) Arrays.fill(bytes, (int) at, bytes.length, (byte) 0);
            if (!isZeroed && records.peek() >= first && at < bytes.length) bytes[(int) at + 8] ^= 1; // of the body's CRC
            Files.write(file, bytes);
        }
    }

    private void expire(int count) throws Exception {
        try (Stream<Path> files = Files.list(Paths.get(config.getStorePathCommitLog()))) {
            List<Path> sorted = files.sorted().collect(Collectors.toList());
            for (Path file : sorted.subList(0, Math.max(0, Math.min(count, sorted.size() - 1)))) Files.delete(file);
        }
    }

    private void close() throws Exception {
        if (store == null) return;
        settle();
        end = store.getMaxPhyOffset();
        ExecutorService timed = (ExecutorService) member("scheduledExecutorService");
        timed.shutdown();
        timed.awaitTermination(1, TimeUnit.MINUTES);
        Thread.currentThread().interrupt(); // without the three seconds that DefaultMessageStore#shutdown sleeps
        store.shutdown();
        Thread.interrupted();
        store = null;
    }

    private static void copy(Path from, Path to) throws IOException {
        try (Stream<Path> all = Files.walk(from)) {
            for (Path path : (Iterable<Path>) all::iterator) {
                Path target = to.resolve(from.relativize(path).toString());
                if (Files.isDirectory(path)) Files.createDirectories(target); else Files.copy(path, target, StandardCopyOption.REPLACE_EXISTING);
            }
        }
    }
}
