import java.io.*;
import java.net.*;
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
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Plays the lives of many stores with Apache RocketMQ's own DefaultMessageStore, in one process. args: threads.
 * Reads the path of a script a line, answers "PATH<TAB>ok" or "PATH<TAB>error". A script has a command a line, its words parted by tabs:
 *   open ROOT [KEY=VALUE…]                     open the store as a broker does
 *   put TOPIC QUEUE COUNT BODY_BYTES [NAME=VALUE…]   store messages with these properties; "#" in a value is the number of the message
 *   clock MS                                   the store time of the next messages (needs duplicationEnable=true); each is 7 ms later than the one before
 *   delete TOPIC                               delete a topic's queues, as a broker does with the topic
 *   expire COUNT                               delete the first COUNT files of the log, of a closed store
 *   remove PATH                                delete a file of a closed store
 *   kill ROOT                                  a picture of the open store as a killed process leaves it, at ROOT; then close the store
 *   lag ROOT                                   a picture of the open store, at ROOT: of its queues and Index, when "killbehind" follows
 *   killbehind ROOT                            a picture of the log alone, at ROOT, so that it is that of a process that was killed before it dispatched what came after "lag"; then close the store
 *   close                                      close the store
 *   copy FROM TO                               copy a directory
 */
public class Lives {
    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
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
                } catch (Throwable error) {
                    StringWriter text = new StringWriter();
                    error.printStackTrace(new PrintWriter(text));
                    answer = text.toString().replace('\n', ' ').replace('\t', ' ');
                } finally {
                    try {
                        life.close();
                    } catch (Throwable error) {
                        answer = error.toString();
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
        System.exit(0); // a store leaves threads behind
    }

    private DefaultMessageStore store;
    private MessageStoreConfig config;
    private long clock;
    private int number;

    private void play(String[] words) throws Exception {
        String[] rest = words.length > 2 ? Arrays.copyOfRange(words, 2, words.length) : new String[0];
        switch (words[0]) {
            case "open": open(words[1], rest); break;
            case "put": put(words[1], rest); break;
            case "clock": clock = Long.parseLong(words[1]); break;
            case "delete": settle(); store.deleteTopics(Collections.singleton(words[1])); break;
            case "expire": expire(Integer.parseInt(words[1])); break;
            case "remove": Files.deleteIfExists(Paths.get(words[1])); break;
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
        BrokerStatsManager stats = new BrokerStatsManager(broker);
        synchronized (Lives.class) { // StoreStatsService fills a static TreeMap
            store = config.isEnableRocksDBStore() ? new RocksDBMessageStore(config, stats, null, broker, topics) : new DefaultMessageStore(config, stats, null, broker, topics);
        }
        if (!store.load()) throw new IllegalStateException("not loaded");
        store.start();
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
            number++;
        }
    }

    private void settle() throws Exception {
        for (int i = 0; i < 3000 && store.dispatchBehindBytes() > 0; i++) Thread.sleep(5);
        if (store.dispatchBehindBytes() > 0) throw new IllegalStateException("dispatch is behind");
        if (config.isEnableRocksDBStore()) Thread.sleep(300);
    }

    private void expire(int count) throws Exception {
        try (Stream<Path> files = Files.list(Paths.get(config.getStorePathCommitLog()))) {
            List<Path> sorted = files.sorted().collect(Collectors.toList());
            for (Path file : sorted.subList(0, Math.max(0, Math.min(count, sorted.size() - 1)))) Files.delete(file);
        }
    }

    private void close() throws Exception {
        if (store != null) { settle(); store.shutdown(); store = null; }
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
