<?php
declare(strict_types=1);

/**
 * A payments service in PHP, with PDO.
 *
 *     POST /payments     charges at a provider; a lease holds the key meanwhile
 *     POST /transfers    in one transaction
 *
 * PHP_CLI_SERVER_WORKERS=10 php -S 127.0.0.1:8080 payments.php
 */

require __DIR__ . '/idempotency.php';

const TIMEOUT = 30; // seconds that the provider has; the lease must be longer

ignore_user_abort(true); // a client that hangs up does not end the work
ini_set('display_errors', 'stderr');
header_remove('X-Powered-By');

/** Where and as whom is in PGHOST, PGDATABASE, PGUSER. Behind PgBouncer in transaction mode
 * nothing may be prepared for the next statement. */
function connect(): PDO
{
    return new PDO('pgsql:', options: [
        PDO::PGSQL_ATTR_DISABLE_PREPARES => true,
        PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION,
    ]);
}

function seconds(string $name, ?string $default = null): ?string
{
    $value = getenv($name) ?: $default;
    return $value === null ? null : "$value s";
}

function charge(object $order, string $providerKey): array
{
    $reply = @file_get_contents(getenv('PROVIDER') . '/charges', false, stream_context_create(['http' => [
        'method' => 'POST',
        'header' => ['Content-Type: application/json', "Idempotency-Key: $providerKey"],
        'content' => json_encode(['reference' => $order->reference, 'amount' => $order->amount]),
        'timeout' => TIMEOUT,
        'ignore_errors' => true,
    ]]));
    $status = (int) substr($http_response_header[0] ?? '', 9, 3);
    if ($reply === false || $status === 0 || $status >= 500) {
        throw new RuntimeException('the provider did not answer');
    }
    return [$status, json_decode($reply)];
}

function respond(int $status, array|object $answer, array $headers = []): array
{
    $kind = $status < 400 ? 'application/json' : 'application/problem+json';
    return [$status, ['Content-Type' => $kind, ...$headers], json_encode($answer)];
}

function pay(Call $call, string $client, object $order): array
{
    try {
        [$status, $answer] = charge($order, $call->providerKey);
    } catch (RuntimeException) { // perhaps the money moved: the next attempt finds out, with the same key
        return problem(502, 'The payment provider did not answer');
    }
    if ($status !== 201) {
        return respond($status, $answer); // final: kept, and replayed
    }
    $insert = $call->begin()->prepare('INSERT INTO payment (client, reference, amount, charge) VALUES (?, ?, ?, ?) RETURNING id');
    $insert->execute([$client, $order->reference, $order->amount, $answer->charge]);
    $number = $insert->fetchColumn();
    return respond(201, ['payment' => $number, 'charge' => $answer->charge], ['Location' => "/payments/$number"]);
}

function transfer(Call $call, string $client, object $order): array
{
    $insert = $call->begin()->prepare('INSERT INTO transfer (client, reference, amount) VALUES (?, ?, ?) RETURNING id');
    $insert->execute([$client, $order->reference, $order->amount]);
    $number = $insert->fetchColumn();
    return respond(201, ['transfer' => $number], ['Location' => "/transfers/$number"]);
}

function answer(): array
{
    if (!preg_match('/^Bearer (.+)$/', $_SERVER['HTTP_AUTHORIZATION'] ?? '', $found)) {
        return problem(401, 'Who are you?');
    }
    // What is refused here has not begun, and takes no key.
    $order = json_decode(file_get_contents('php://input'));
    if (!is_object($order) || !is_string($order->reference ?? null) || !is_int($order->amount ?? null) || $order->amount <= 0) {
        return problem(400, 'A reference and an amount are needed');
    }
    $client = $found[1];
    $retention = seconds('RETENTION');
    return match (parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH)) {
        '/payments' => idempotent('connect', $client, fn($call) => pay($call, $client, $order), seconds('LEASE', '60'), $retention),
        '/transfers' => idempotent('connect', $client, fn($call) => transfer($call, $client, $order), null, $retention),
        default => problem(404, 'No such resource'),
    };
}

send(answer());
