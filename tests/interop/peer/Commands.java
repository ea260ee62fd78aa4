import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The original's mqadmin, many commands in one process: a JVM for each would take seconds to start.
 * Reads a command a line, in Base64, its words parted by NUL; answers with a line, in Base64, of what it printed.
 */
public class Commands {
    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line; (line = lines.readLine()) != null; ) {
            String command = new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream taken = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(taken);
            System.setErr(taken);
            MQAdminStartup.main0(command.split("\0", -1), null);
            answers.println(Base64.getEncoder().encodeToString(printed.toByteArray()));
            answers.flush();
        }
        System.exit(0); // clients of commands leave threads behind
    }
}
