import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.hadoop.ParquetReader;
import org.apache.parquet.hadoop.example.GroupReadSupport;

/** Prints each row of Parquet files as a line: key, name, weights, between tabs. */
public final class ParquetRows {
  private ParquetRows() {}

  public static void main(String[] paths) throws Exception {
    Configuration configuration = new Configuration();
    for (String path : paths) {
      try (ParquetReader<Group> reader =
          ParquetReader.builder(new GroupReadSupport(), new Path(path))
              .withConf(configuration)
              .build()) {
        for (Group row = reader.read(); row != null; row = reader.read()) {
          print(row);
        }
      }
    }
  }

  private static void print(Group row) {
    boolean named = row.getType().containsField("name") && row.getFieldRepetitionCount("name") > 0;
    Group weights = row.getGroup("weights", 0);
    List<String> numbers = new ArrayList<>();
    for (int i = 0; i < weights.getFieldRepetitionCount(0); i++) {
      numbers.add(Float.toString(weights.getGroup(0, i).getFloat("element", 0)));
    }
    String name = named ? row.getString("name", 0) : "";
    System.out.println(row.getLong("key", 0) + "\t" + name + "\t" + String.join(",", numbers));
  }
}
