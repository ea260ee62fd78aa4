package rmq_formats;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.UUID;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Log store of Delta tables on S3 in which the store itself decides which commit of a version is the first: a PUT with
 * If-None-Match. The driver compiles it, see log_store.py, by a compiler that takes no more than plain Java.
 */
public class ConditionalLogStore extends io.delta.storage.S3SingleDriverLogStore {
    private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
    private static final String WRITER = "rmq-writer"; // metadata of the object: whose commit it is

    public ConditionalLogStore(Configuration configuration) {
        super(configuration);
    }

    public void write(Path path, Iterator lines, Boolean overwrite, Configuration configuration) throws IOException {
        Path place = resolvePathOnPhysicalStorage(path, configuration);
        FileSystem files = place.getFileSystem(configuration);
        if (overwrite.booleanValue() || !files.hasPathCapability(place, CONDITIONAL)) {
            super.write(path, lines, overwrite, configuration);
            return;
        }
        byte[] writer = UUID.randomUUID().toString().getBytes(StandardCharsets.UTF_8);
        FSDataOutputStreamBuilder builder = files.createFile(place);
        builder.must(CONDITIONAL, true);
        builder.must("fs.s3a.create.header." + WRITER, new String(writer, StandardCharsets.UTF_8));
        FSDataOutputStream stream = (FSDataOutputStream) builder.build();
        boolean whole = false;
        try {
            while (lines.hasNext()) {
                stream.write(((String) lines.next() + "\n").getBytes(StandardCharsets.UTF_8));
            }
            whole = true;
        } finally {
            if (!whole) {
                stream.abort(); // else its end would be published as the commit's
            }
        }
        try {
            stream.close();
        } catch (IOException error) {
            // A put whose answer was lost is sent again, and refused, for the first one has made the object.
            if (!files.exists(place)) {
                throw error;
            }
            if (!Arrays.equals(writer, files.getXAttr(place, "header." + WRITER))) {
                throw new FileAlreadyExistsException(place.toString());
            }
        }
    }
}
