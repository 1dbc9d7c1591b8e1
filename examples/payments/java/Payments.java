import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import com.sun.net.httpserver.HttpHandler;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.math.BigDecimal;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.Executors;
import javax.sql.DataSource;
import org.postgresql.ds.PGSimpleDataSource;

/**
 * A payments service in Java, with the JDK's HTTP server and JDBC.
 *
 * <pre>
 * POST /payments     charges at a provider; a lease holds the key meanwhile
 * POST /transfers    in one transaction
 * </pre>
 */
final class Payments {
    /** The provider has this long; the lease must be longer. */
    private static final Duration TIMEOUT = Duration.ofSeconds(30);

    private static final HttpClient provider = HttpClient.newHttpClient();

    private static Idempotency.Answer pay(Idempotency.Request request, Idempotency.Call call) throws SQLException {
        JsonObject order = JsonParser.parseString(request.body()).getAsJsonObject();
        HttpResponse<String> reply;
        try {
            reply = charge(order, call.providerKey.toString());
        } catch (IOException | InterruptedException e) { // perhaps the money moved: the next attempt finds out, with the same key
            return Idempotency.Answer.problem(502, "The payment provider did not answer");
        }
        JsonObject answer = JsonParser.parseString(reply.body()).getAsJsonObject();
        if (reply.statusCode() != 201) {
            return Idempotency.Answer.of(reply.statusCode(), answer); // final: kept, and replayed
        }
        String charge = answer.get("charge").getAsString();
        try (PreparedStatement insert = call.begin().prepareStatement(
                "INSERT INTO payment (client, reference, amount, charge) VALUES (?, ?, ?, ?) RETURNING id")) {
            insert.setString(4, charge);
            long id = insert(insert, request, order);
            return Idempotency.Answer.of(201, Map.of("payment", id, "charge", charge),
                    new Idempotency.Header("Location", "/payments/" + id));
        }
    }

    private static Idempotency.Answer transfer(Idempotency.Request request, Idempotency.Call call) throws SQLException {
        JsonObject order = JsonParser.parseString(request.body()).getAsJsonObject();
        try (PreparedStatement insert = call.begin().prepareStatement(
                "INSERT INTO transfer (client, reference, amount) VALUES (?, ?, ?) RETURNING id")) {
            long id = insert(insert, request, order);
            return Idempotency.Answer.of(201, Map.of("transfer", id), new Idempotency.Header("Location", "/transfers/" + id));
        }
    }

    private static long insert(PreparedStatement insert, Idempotency.Request request, JsonObject order) throws SQLException {
        insert.setString(1, request.client());
        insert.setString(2, order.get("reference").getAsString());
        insert.setBigDecimal(3, order.get("amount").getAsBigDecimal());
        try (ResultSet row = insert.executeQuery()) {
            row.next();
            return row.getLong(1);
        }
    }

    private static HttpResponse<String> charge(JsonObject order, String providerKey) throws IOException, InterruptedException {
        JsonObject body = new JsonObject();
        body.add("reference", order.get("reference"));
        body.add("amount", order.get("amount"));
        HttpRequest call = HttpRequest.newBuilder(URI.create(System.getenv("PROVIDER") + "/charges"))
                .version(HttpClient.Version.HTTP_1_1)
                .timeout(TIMEOUT)
                .header("Content-Type", "application/json")
                .header("Idempotency-Key", providerKey)
                .POST(HttpRequest.BodyPublishers.ofString(new Gson().toJson(body)))
                .build();
        HttpResponse<String> reply = provider.send(call, HttpResponse.BodyHandlers.ofString());
        if (reply.statusCode() >= 500) {
            throw new IOException("the provider answered " + reply.statusCode());
        }
        return reply;
    }

    /** What is refused here has not begun, and takes no key. */
    private static HttpHandler checked(Idempotency idempotency, Idempotency.Handler handler) {
        return exchange -> {
            String authorization = exchange.getRequestHeaders().getFirst("Authorization");
            String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            if (authorization == null || !authorization.startsWith("Bearer ")) {
                Idempotency.Answer.problem(401, "Who are you?").send(exchange);
            } else if (!isValid(body)) {
                Idempotency.Answer.problem(400, "A reference and an amount are needed").send(exchange);
            } else {
                String client = authorization.substring("Bearer ".length());
                idempotency.answer(new Idempotency.Request(exchange, client, body), handler).send(exchange);
            }
        };
    }

    private static boolean isValid(String body) {
        try {
            JsonObject order = JsonParser.parseString(body).getAsJsonObject();
            BigDecimal amount = order.get("amount").getAsBigDecimal();
            return order.get("reference").getAsJsonPrimitive().isString() && amount.signum() > 0 && amount.scale() <= 0;
        } catch (JsonParseException | IllegalStateException | NullPointerException | NumberFormatException e) {
            return false;
        }
    }

    /** JDBC does not read PGHOST and its like. A pool, HikariCP say, is a DataSource, too. */
    private static DataSource source() {
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setServerNames(new String[] {System.getenv("PGHOST")});
        source.setPortNumbers(new int[] {Integer.parseInt(System.getenv("PGPORT"))});
        source.setDatabaseName(System.getenv("PGDATABASE"));
        source.setUser(System.getenv("PGUSER"));
        source.setPrepareThreshold(0); // behind PgBouncer in transaction mode nothing may be prepared for the next statement
        return source;
    }

    public static void main(String[] arguments) throws IOException {
        String lease = System.getenv().getOrDefault("LEASE", "60") + " s";
        String retention = System.getenv("RETENTION") == null ? null : System.getenv("RETENTION") + " s";
        HttpServer server = HttpServer.create(
                new InetSocketAddress("127.0.0.1", Integer.parseInt(System.getenv("PORT"))), 64);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/payments", checked(new Idempotency(source(), lease, retention), Payments::pay));
        server.createContext("/transfers", checked(new Idempotency(source(), null, retention), Payments::transfer));
        server.start();
    }
}
