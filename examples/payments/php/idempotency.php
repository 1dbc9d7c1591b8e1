<?php
declare(strict_types=1);

/**
 * What is requested many times with one Idempotency-Key happens once.
 *
 *     idempotent($connect, $client, $handler)                   all the work is in this database
 *     idempotent($connect, $client, $handler, lease: '60 s')    the work leaves it, to a payment provider, say
 *
 * $connect gives a PDO, $client is who was authenticated. $handler(Call) gives an answer:
 * [status, headers, body]; so does this function, for send(). In a framework this is its
 * middleware: $handler is the next one.
 */
function idempotent(callable $connect, string $client, callable $handler, ?string $lease = null, ?string $retention = null): array
{
    if (!isset($_SERVER['HTTP_IDEMPOTENCY_KEY'])) {
        return problem(400, 'Idempotency-Key is missing');
    }
    while (true) {
        $call = new Call($connect);
        try {
            return work($call, $client, $handler, $lease, $retention);
        } catch (PDOException $error) {
            $state = $error->errorInfo[0] ?? '';
            if ($state === 'ID400') {
                return problem(400, 'Idempotency-Key is malformed');
            }
            if (in_array($state, ['22P02', '22P05', '22021'], true)) {
                return problem(400, 'The body is not JSON');
            }
            if ($state !== 'ID001') {
                error_log($error->getMessage());
                return problem(503, 'Please try again', ['Retry-After' => '1']);
            }
            // We were too slow, and another attempt has taken over: its answer is the answer.
        } finally {
            $call->rollBack();
        }
    }
}

/** One attempt at a request, and the transaction of its answer. */
class Call
{
    public string $providerKey;
    public int $attempt;
    private ?PDO $db = null;

    public function __construct(private $connect)
    {
    }

    /** The connection, in the transaction that ends with the answer. Where the work leaves the
     * database, ask for it afterwards. */
    public function begin(): PDO
    {
        if (!$this->db) {
            $this->db = ($this->connect)();
            $this->db->beginTransaction();
        }
        return $this->db;
    }

    public function commit(): void
    {
        $this->db->commit();
        $this->db = null;
    }

    /** Whatever was not committed is rolled back with the connection. */
    public function rollBack(): void
    {
        $this->db = null;
    }
}

function work(Call $call, string $client, callable $handler, ?string $lease, ?string $retention): array
{
    $reserve = $call->begin()->prepare(<<<'SQL'
        SELECT key, outcome, token, attempt, status_code, headers, body,
               idem_provider_key(client => client, key => key) AS provider_key
          FROM (SELECT ?::text AS client) AS who, idem_parse_key(?) AS key,
               idem_reserve(client => client, key => key,
                            request => jsonb_build_object('path', ?::text, 'body', ?::jsonb),
                            lease => ?::interval, retention => ?::interval)
        SQL);
    $path = parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH);
    $reserve->execute([$client, $_SERVER['HTTP_IDEMPOTENCY_KEY'], $path, file_get_contents('php://input'), $lease, $retention]);
    $reserved = $reserve->fetch(PDO::FETCH_OBJ);
    if ($reserved->outcome !== 'new') {
        return known($reserved);
    }
    if ($lease !== null) {
        $call->commit(); // before anything leaves the database
    }
    $call->providerKey = $reserved->provider_key;
    $call->attempt = $reserved->attempt;

    [$status, $headers, $body] = $answer = $handler($call);
    if ($status < 500) { // else it is no answer: a retry may find one
        // Of an answer this is not kept: it is the first caller's alone.
        $kept = array_filter($headers, fn($name) => strtolower($name) !== 'set-cookie', ARRAY_FILTER_USE_KEY);
        $complete = $call->begin()->prepare(
            'SELECT idem_complete_bytes(client => ?, key => ?, token => ?, status_code => ?, body => ?, headers => ?::jsonb)'
        );
        foreach ([$client, $reserved->key, $reserved->token, $status, $body, json_encode((object) $kept)] as $i => $value) {
            // Bytes have to be called a LOB: as text, a NUL would end them.
            $complete->bindValue($i + 1, $value, $i === 4 ? PDO::PARAM_LOB : PDO::PARAM_STR);
        }
        $complete->execute();
        $call->commit();
    }
    return $answer;
}

/** Every outcome but `new` is an answer, to be sent as it is. PDO gives a bytea as a stream. */
function known(object $reserved): array
{
    $headers = json_decode($reserved->headers, true);
    if ($reserved->outcome === 'replay') {
        $headers['Idempotent-Replayed'] = 'true';
    }
    return [$reserved->status_code, $headers, $reserved->body === null ? '' : stream_get_contents($reserved->body)];
}

function problem(int $status, string $title, array $headers = []): array
{
    $body = json_encode(['title' => $title, 'status' => $status]);
    return [$status, ['Content-Type' => 'application/problem+json', ...$headers], $body];
}

function send(array $answer): void
{
    [$status, $headers, $body] = $answer;
    http_response_code($status);
    foreach ($headers as $name => $value) {
        header("$name: $value");
    }
    header('Content-Length: ' . strlen($body));
    echo $body;
}
