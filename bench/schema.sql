-- What idem is measured against: a business table, and idempotency keys done by
-- hand, in three ways (statements of their own, PL/pgSQL, C through SPI).
--
-- :module is the path of bench/module/idem_bench.c, built.

-- The business rows.
CREATE TABLE payment (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    client text   NOT NULL,
    amount int    NOT NULL
);

-- One whose rows take as much as a key that idem_call has answered.
CREATE TABLE large_payment (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    client text   NOT NULL,
    amount int    NOT NULL,
    note   text   NOT NULL
);

-- The work of idem_call. In PL/pgSQL, which keeps its plans: a function in SQL
-- is planned anew by every statement that calls it.
CREATE FUNCTION pay(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    payment bigint;
BEGIN
    INSERT INTO payment (client, amount) VALUES ('c', (request->>'amount')::int) RETURNING id INTO payment;
    RETURN jsonb_build_object('payment', payment);
END $$;

-- Keys by hand: columns, their order, primary key and storage as in idem_key, and as there no
-- attempt and no time of creation until there is a second attempt.
CREATE TABLE hand_key (
    expires_at   timestamptz NOT NULL,
    lease_until  timestamptz NOT NULL,
    began_at     timestamptz NOT NULL,
    token        uuid        NOT NULL,
    client       text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    fingerprint  bytea,
    completed_at timestamptz,
    status_code  int,
    body         bytea,
    headers      jsonb,
    attempt      int,
    created_at   timestamptz,
    PRIMARY KEY (client, key)
) WITH (fillfactor = 92, autovacuum_vacuum_scale_factor = 0.05,
        autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 1);

CREATE TYPE bench_reservation AS (
    outcome text, token uuid, attempt int, status_code int, headers jsonb, body bytea
);

-- PL/pgSQL, reading first

CREATE FUNCTION bench_plpgsql_reserve(c text, k text, fp bytea) RETURNS bench_reservation LANGUAGE plpgsql AS $$
DECLARE
    found_row record;
    result    bench_reservation;
BEGIN
    LOOP
        SELECT expires_at, lease_until, completed_at, fingerprint, status_code, headers, body INTO found_row
          FROM hand_key WHERE client = c AND key = k;
        IF FOUND AND found_row.expires_at > clock_timestamp() THEN
            IF found_row.fingerprint <> fp THEN
                result.outcome := 'mismatch';
                RETURN result;
            ELSIF found_row.completed_at IS NOT NULL THEN
                result.outcome := 'replay';
                result.status_code := found_row.status_code;
                result.headers := found_row.headers;
                result.body := found_row.body;
                RETURN result;
            ELSIF found_row.lease_until > clock_timestamp() THEN
                result.outcome := 'in_flight';
                RETURN result;
            END IF;
        END IF;
        INSERT INTO hand_key AS h (expires_at, lease_until, began_at, token, client, key, fingerprint)
        VALUES (clock_timestamp() + '24 h', clock_timestamp() + '30 s', clock_timestamp(), gen_random_uuid(), c, k, fp)
        ON CONFLICT (client, key) DO UPDATE SET expires_at = excluded.expires_at, lease_until = excluded.lease_until,
            began_at = excluded.began_at, token = excluded.token, fingerprint = excluded.fingerprint,
            attempt = CASE WHEN h.expires_at > clock_timestamp() THEN coalesce(h.attempt, 1) + 1 END,
            created_at = CASE WHEN h.expires_at > clock_timestamp() THEN coalesce(h.created_at, h.began_at) END,
            status_code = NULL, completed_at = NULL, headers = NULL, body = NULL
        WHERE h.expires_at <= clock_timestamp()
           OR h.completed_at IS NULL AND h.lease_until <= clock_timestamp() AND h.fingerprint = excluded.fingerprint
        RETURNING h.token, coalesce(h.attempt, 1) INTO result.token, result.attempt;
        IF FOUND THEN
            result.outcome := 'new';
            RETURN result;
        END IF;
    END LOOP;
END $$;

-- PL/pgSQL, inserting first: the faster one for new keys

CREATE FUNCTION bench_plpgsql_upsert(c text, k text, fp bytea) RETURNS bench_reservation LANGUAGE plpgsql AS $$
DECLARE
    result bench_reservation;
BEGIN
    INSERT INTO hand_key AS h (expires_at, lease_until, began_at, token, client, key, fingerprint)
    VALUES (clock_timestamp() + '24 h', clock_timestamp() + '30 s', clock_timestamp(), gen_random_uuid(), c, k, fp)
    ON CONFLICT (client, key) DO UPDATE SET expires_at = excluded.expires_at, lease_until = excluded.lease_until,
        began_at = excluded.began_at, token = excluded.token, fingerprint = excluded.fingerprint,
        attempt = CASE WHEN h.expires_at > clock_timestamp() THEN coalesce(h.attempt, 1) + 1 END,
        created_at = CASE WHEN h.expires_at > clock_timestamp() THEN coalesce(h.created_at, h.began_at) END,
        status_code = NULL, completed_at = NULL, headers = NULL, body = NULL
    WHERE h.expires_at <= clock_timestamp()
       OR h.completed_at IS NULL AND h.lease_until <= clock_timestamp() AND h.fingerprint = excluded.fingerprint
    RETURNING h.token, coalesce(h.attempt, 1) INTO result.token, result.attempt;
    IF FOUND THEN
        result.outcome := 'new';
        RETURN result;
    END IF;
    RETURN bench_plpgsql_reserve(c, k, fp);
END $$;

CREATE FUNCTION bench_plpgsql_complete(c text, k text, t uuid, status int, answer text, h jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE hand_key SET status_code = status, body = convert_to(answer, 'UTF8'), headers = h, completed_at = clock_timestamp()
     WHERE client = c AND key = k AND token = t AND completed_at IS NULL AND expires_at > clock_timestamp();
    IF NOT FOUND THEN
        RAISE 'key is not reserved under this token';
    END IF;
END $$;

-- C through SPI, and functions that do nothing

CREATE FUNCTION bench_spi_reserve(c text, k text, fp bytea) RETURNS bench_reservation AS :'module' LANGUAGE C;
CREATE FUNCTION bench_spi_upsert(c text, k text, fp bytea) RETURNS bench_reservation AS :'module' LANGUAGE C;
CREATE FUNCTION bench_spi_complete(c text, k text, t uuid, status int, answer text, h jsonb DEFAULT NULL) RETURNS void
AS :'module' LANGUAGE C;
CREATE FUNCTION bench_empty_reserve(c text, k text, fp bytea) RETURNS bench_reservation AS :'module' LANGUAGE C;
CREATE FUNCTION bench_empty_complete(c text, k text, t uuid, status int, answer text, h jsonb DEFAULT NULL) RETURNS void
AS :'module' LANGUAGE C;

-- A row like a reminder, by way of an ordinary INSERT
CREATE TABLE small (
    lease_until timestamptz NOT NULL,
    token       uuid        NOT NULL,
    announced   boolean     NOT NULL,
    client      text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL
);
CREATE FUNCTION bench_spi_insert(lease_until timestamptz, token uuid, client text, key text) RETURNS void
AS :'module' LANGUAGE C;
