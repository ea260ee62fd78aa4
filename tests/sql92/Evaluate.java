import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.parser.SelectorParser;

/** What the original makes of expressions: one a line in, with \\n for a line end, and what came of it a line out. */
public class Evaluate {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> properties = new HashMap<>();
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            properties.put(argument.substring(0, at), argument.substring(at + 1));
        }
        EvaluationContext context = new EvaluationContext() {
            public Object get(String name) {
                return properties.get(name);
            }

            public Map<String, Object> keyValues() {
                return new HashMap<>(properties);
            }
        };
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.append(of(line.replace("\\n", "\n"), context).replace("\n", "\\n").replace("\r", "\\r")).append('\n');
        }
        System.out.write(out.toString().getBytes(StandardCharsets.UTF_8));
        System.out.flush();
    }

    static String of(String text, EvaluationContext context) {
        Expression expression;
        try {
            expression = SelectorParser.parse(text);
        } catch (Throwable error) {
            return "refused " + error.getMessage();
        }
        try {
            return String.valueOf(expression.evaluate(context));
        } catch (Throwable error) {
            return "error";
        }
    }
}
