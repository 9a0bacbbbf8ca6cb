// Iceberg's REST catalog for tests, on 127.0.0.1 and a free port, for benchmarks/peers/iceberg_rest.py. Iceberg's own
// RESTCatalogServer builds the same catalog, but listens on all addresses. Each argument is a property NAME=VALUE of
// the catalog behind it. Prints "serves http://127.0.0.1:PORT/" when it accepts requests.
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.server.handler.gzip.GzipHandler;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

public class IcebergRest {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> properties = new HashMap<>();
        for (String argument : arguments) {
            String[] property = argument.split("=", 2);
            properties.put(property[0], property[1]);
        }
        Catalog catalog = CatalogUtil.buildIcebergCatalog("rest", properties, new Configuration());
        ServletContextHandler context = new ServletContextHandler();
        context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        context.insertHandler(new GzipHandler());
        Server server = new Server();
        // Server(InetSocketAddress) would listen on the name of the address, localhost, which can be ::1.
        ServerConnector connector = new ServerConnector(server);
        connector.setHost("127.0.0.1");
        server.addConnector(connector);
        server.setHandler(context);
        server.start();
        System.out.println("serves " + server.getURI());
    }
}
