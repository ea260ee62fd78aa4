import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;

/** Runs the main of another class. Its end ends the process, with an error too: clients and stores leave threads behind. */
public class Run {
    public static void main(String[] args) throws Exception {
        Method main = Class.forName(args[0]).getMethod("main", String[].class);
        int code = 0;
        try {
            main.invoke(null, (Object) Arrays.copyOfRange(args, 1, args.length));
        } catch (InvocationTargetException error) {
            error.getCause().printStackTrace();
            code = 1;
        }
        System.exit(code);
    }
}
