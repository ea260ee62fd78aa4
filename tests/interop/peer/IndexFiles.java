import java.lang.reflect.Field;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.index.IndexService;

/** IndexFiles of the original: it names one by the millisecond of its creation, and writes a second one of that millisecond over the first. */
final class IndexFiles {
    private IndexFiles() {}

    /** Creates no two IndexFiles of a store in one millisecond. To be called before the store is loaded. */
    static void createApart(DefaultMessageStore store) throws ReflectiveOperationException {
        Field field = DefaultMessageStore.class.getDeclaredField("indexService");
        field.setAccessible(true);
        IndexService index = (IndexService) field.get(store);
        long[] bytes = {-1};
        store.addDispatcher(request -> {
            if (index.getTotalSize() == bytes[0]) return;
            bytes[0] = index.getTotalSize();
            for (long created = System.currentTimeMillis(); System.currentTimeMillis() == created; ) Thread.onSpinWait();
        });
    }
}
