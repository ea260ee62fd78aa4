import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The original's mqadmin, and dump and queues of peer.sh, many commands in one process: a JVM for each would
 * take seconds to start. Reads a command a line, in Base64, its words parted by NUL; answers with a line, in Base64, of
 * what it printed, behind a "!" where it has failed.
 */
public class Commands {
    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        hurry(Thread.currentThread());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line; (line = lines.readLine()) != null; ) {
            String command = new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream taken = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(taken);
            System.setErr(taken);
            String failed = "";
            try {
                run(command.split("\0", -1));
            } catch (Exception | AssertionError error) {
                error.printStackTrace(taken);
                failed = "!";
            }
            answers.println(failed + Base64.getEncoder().encodeToString(printed.toByteArray()));
            answers.flush();
        }
    }

    /** A client that shuts down waits up to three seconds for a thread that waits for events: it is woken. */
    static void hurry(Thread main) {
        Thread watch = new Thread(() -> {
            while (true) {
                try {
                    Thread.sleep(50);
                } catch (InterruptedException error) {
                    return;
                }
                if (Arrays.stream(main.getStackTrace()).anyMatch(at -> at.getClassName().endsWith("ServiceThread"))) {
                    Thread.getAllStackTraces().keySet().stream()
                        .filter(one -> one.getName().startsWith("NettyEventExecutor")).forEach(Thread::interrupt);
                }
            }
        });
        watch.setDaemon(true);
        watch.start();
    }

    static void run(String[] words) throws Exception {
        String[] rest = Arrays.copyOfRange(words, 1, words.length);
        switch (words[0]) {
            case "" -> MQAdminStartup.main0(rest, null); // the list of commands
            case "dump" -> GoldenDump.run(rest);
            case "queues" -> ReadQueues.main(rest);
            default -> MQAdminStartup.main0(words, null);
        }
    }
}
