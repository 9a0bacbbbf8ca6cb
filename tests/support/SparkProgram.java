import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.spark.sql.SparkSession;

/** A Spark program that knows nothing of Sluice. It executes one SQL statement for each line of its standard input. */
public class SparkProgram {
  public static void main(String[] arguments) throws Exception {
    SparkSession spark = SparkSession.builder().appName("program").getOrCreate();
    System.out.println("ready");
    BufferedReader statements = new BufferedReader(new InputStreamReader(System.in));
    for (String statement = statements.readLine(); statement != null; statement = statements.readLine()) {
      System.out.println(execute(spark, statement));
    }
    spark.stop();
  }

  private static String execute(SparkSession spark, String statement) {
    try {
      return "done " + spark.sql(statement).collectAsList();
    } catch (Exception e) {
      Throwable cause = e;
      while (cause.getCause() != null) {
        cause = cause.getCause();
      }
      return cause.getClass().getSimpleName() + ": " + cause.getMessage().lines().findFirst().orElse("");
    }
  }
}
