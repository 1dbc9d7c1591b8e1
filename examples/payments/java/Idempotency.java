import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonParser;
import com.sun.net.httpserver.HttpExchange;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import javax.sql.DataSource;

/**
 * What is requested many times with one Idempotency-Key happens once. Without a lease all the work
 * is in this database; with one ("60 s") it leaves it, to a payment provider, say. In a servlet
 * container this is a Filter.
 */
final class Idempotency {
    private static final String RESERVE = """
            SELECT key, outcome, token, attempt, status_code, headers, body,
                   idem_provider_key(client => client, key => key) AS provider_key
              FROM (SELECT ?::text AS client) AS who, idem_parse_key(?) AS key,
                   idem_reserve(client => client, key => key,
                                request => jsonb_build_object('path', ?::text, 'body', ?::jsonb),
                                lease => ?::interval, retention => ?::interval)""";
    private static final String COMPLETE = """
            SELECT idem_complete_bytes(client => ?, key => ?, token => ?, status_code => ?, body => ?,
                                       headers => ?::jsonb)""";

    /** Of an answer these are not kept: the first is the first caller's alone. */
    private static final Set<String> NOT_KEPT = Set.of("set-cookie", "content-length", "date");

    record Header(String name, String value) {}

    record Answer(int status, List<Header> headers, byte[] body) {
        static Answer of(int status, Object body, Header... more) {
            List<Header> headers = new ArrayList<>(List.of(more));
            headers.add(new Header("Content-Type", status < 400 ? "application/json" : "application/problem+json"));
            return new Answer(status, headers, new Gson().toJson(body).getBytes(StandardCharsets.UTF_8));
        }

        static Answer problem(int status, String title, Header... more) {
            return of(status, Map.of("title", title, "status", status), more);
        }

        void send(HttpExchange exchange) throws IOException {
            for (Header header : headers) {
                exchange.getResponseHeaders().add(header.name, header.value);
            }
            exchange.sendResponseHeaders(status, body.length == 0 ? -1 : body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        }
    }

    /** A request whose client is known. */
    record Request(HttpExchange exchange, String client, String body) {}

    interface Handler {
        Answer handle(Request request, Call call) throws SQLException;
    }

    /** One attempt at a request, and the transaction of its answer. */
    final class Call implements AutoCloseable {
        UUID providerKey;
        int attempt;
        private Connection db;

        /**
         * The connection, in the transaction that ends with the answer. Where the work leaves the
         * database, ask for it afterwards.
         */
        Connection begin() throws SQLException {
            if (db == null) {
                db = source.getConnection();
                db.setAutoCommit(false);
            }
            return db;
        }

        private void commit() throws SQLException {
            db.commit();
            close();
        }

        /** Whatever was not committed is rolled back. */
        @Override
        public void close() throws SQLException {
            if (db != null) {
                try (Connection closing = db) {
                    db = null;
                    closing.rollback();
                }
            }
        }
    }

    private final DataSource source;
    private final String lease;
    private final String retention;

    Idempotency(DataSource source, String lease, String retention) {
        this.source = source;
        this.lease = lease;
        this.retention = retention;
    }

    Answer answer(Request request, Handler handler) {
        List<String> keys = request.exchange.getRequestHeaders().get("Idempotency-Key"); // getFirst would hide a second one
        if (keys == null) {
            return Answer.problem(400, "Idempotency-Key is missing");
        }
        while (true) {
            try (Call call = new Call()) {
                return work(request, String.join(", ", keys), handler, call);
            } catch (SQLException error) {
                switch (String.valueOf(error.getSQLState())) {
                    case "ID001" -> { } // we were too slow, and another attempt has taken over: its answer is the answer
                    case "ID400" -> { return Answer.problem(400, "Idempotency-Key is malformed"); }
                    case "22P02", "22P05", "22021" -> { return Answer.problem(400, "The body is not JSON"); }
                    default -> {
                        System.err.println(error);
                        return Answer.problem(503, "Please try again", new Header("Retry-After", "1"));
                    }
                }
            }
        }
    }

    private Answer work(Request request, String header, Handler handler, Call call) throws SQLException {
        String key;
        UUID token;
        try (PreparedStatement reserve = call.begin().prepareStatement(RESERVE)) {
            reserve.setString(1, request.client);
            reserve.setString(2, header);
            reserve.setString(3, request.exchange.getRequestURI().getPath());
            reserve.setString(4, request.body);
            reserve.setString(5, lease);
            reserve.setString(6, retention);
            try (ResultSet row = reserve.executeQuery()) {
                row.next();
                if (!row.getString("outcome").equals("new")) {
                    return known(row);
                }
                key = row.getString("key");
                token = row.getObject("token", UUID.class);
                call.providerKey = row.getObject("provider_key", UUID.class);
                call.attempt = row.getInt("attempt");
            }
        }
        if (lease != null) {
            call.commit(); // before anything leaves the database
        }
        Answer answer = handler.handle(request, call);
        if (answer.status < 500) { // else it is no answer: a retry may find one
            keep(request.client, key, token, answer, call);
        }
        return answer;
    }

    private void keep(String client, String key, UUID token, Answer answer, Call call) throws SQLException {
        List<List<String>> kept = new ArrayList<>();
        for (Header header : answer.headers) {
            if (!NOT_KEPT.contains(header.name.toLowerCase())) {
                kept.add(List.of(header.name, header.value));
            }
        }
        try (PreparedStatement complete = call.begin().prepareStatement(COMPLETE)) {
            complete.setString(1, client);
            complete.setString(2, key);
            complete.setObject(3, token);
            complete.setInt(4, answer.status);
            complete.setBytes(5, answer.body);
            complete.setString(6, new Gson().toJson(kept));
            complete.execute(); // it is a SELECT: executeUpdate would refuse it
        }
        call.commit();
    }

    /**
     * Every outcome but new is an answer, to be sent as it is. Ours have their headers in a list of
     * pairs, idem's own in an object.
     */
    private static Answer known(ResultSet row) throws SQLException {
        List<Header> headers = new ArrayList<>();
        JsonElement stored = JsonParser.parseString(row.getString("headers"));
        if (stored.isJsonObject()) {
            stored.getAsJsonObject().asMap().forEach((name, value) -> headers.add(new Header(name, value.getAsString())));
        } else {
            stored.getAsJsonArray().forEach(pair -> headers.add(new Header(
                    pair.getAsJsonArray().get(0).getAsString(), pair.getAsJsonArray().get(1).getAsString())));
        }
        if (row.getString("outcome").equals("replay")) {
            headers.add(new Header("Idempotent-Replayed", "true"));
        }
        byte[] body = row.getBytes("body");
        return new Answer(row.getInt("status_code"), headers, body == null ? new byte[0] : body);
    }
}
