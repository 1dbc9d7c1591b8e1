-- What every shard has: the extension, the business tables, and who lives here.
--
-- Clients are spread over 64 slots by a hash that no server version changes; a slot is what is moved. The same expression is
-- the row filter of the publications, so it is made of built-in immutable functions.

CREATE EXTENSION idem;
CREATE SCHEMA shard;

CREATE FUNCTION shard.slot_of(client text) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN get_byte(decode(md5(client), 'hex'), 0) & 63;

-- The slots that this server owns. Only a move changes it.
CREATE TABLE shard.slot (slot int PRIMARY KEY);

-- Every call begins here: it holds the slot where it is until its transaction ends, and refuses clients that live elsewhere,
-- however old the caller's idea of the map is. Two statements, so that the second one sees what the lock was waited for.
CREATE FUNCTION shard.own(client text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1768187245, shard.slot_of(client));
    PERFORM FROM shard.slot s WHERE s.slot = shard.slot_of(client);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'client "%" does not live on this shard', client
            USING ERRCODE = 'SH001', HINT = 'Its slot is being moved, or was; try again.';
    END IF;
END
$$;

-- The fence of a move: waits for the calls that are under way, and from its commit on there are no more.
CREATE FUNCTION shard.leave(slots int[]) RETURNS pg_lsn LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1768187245, s) FROM (SELECT unnest(slots) AS s ORDER BY 1) o;
    DELETE FROM shard.slot s WHERE s.slot = ANY (slots);
    RETURN pg_current_wal_insert_lsn();
END
$$;

-- idem's calls, with that question before them

CREATE FUNCTION shard.idem_reserve(client text, key text, fp bytea, lease interval, retention interval, wait interval, token uuid,
                                   request jsonb) RETURNS idem_reservation LANGUAGE plpgsql AS $$
DECLARE
    r idem_reservation;
BEGIN
    PERFORM shard.own(client);
    SELECT * INTO r FROM public.idem_reserve(client, key, fp, lease, retention, wait, token, request);
    RETURN r;
END
$$;

CREATE FUNCTION shard.idem_complete_json(client text, key text, token uuid, status_code int, body jsonb, headers jsonb)
RETURNS bytea LANGUAGE plpgsql AS $$
BEGIN
    PERFORM shard.own(client);
    RETURN public.idem_complete_json(client, key, token, status_code, body, headers);
END
$$;

CREATE FUNCTION shard.idem_call(client text, key text, fn text, request jsonb, fp bytea, status_code int, retention interval,
                                wait interval) RETURNS idem_call_result LANGUAGE plpgsql AS $$
DECLARE
    r idem_call_result;
BEGIN
    PERFORM shard.own(client);
    SELECT * INTO r FROM public.idem_call(client, key, fn::regprocedure, request, fp, status_code, retention, wait);
    RETURN r;
END
$$;

CREATE FUNCTION shard.idem_once(client text, key text, retention interval) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM shard.own(client);
    RETURN public.idem_once(client, key, retention);
END
$$;

CREATE FUNCTION shard.idem_lookup(client text, key text) RETURNS idem_key_state LANGUAGE plpgsql AS $$
DECLARE
    r idem_key_state;
BEGIN
    PERFORM shard.own(client);
    SELECT * INTO r FROM public.idem_lookup(client, key);
    RETURN r;
END
$$;

-- The business: tables with the client in their primary key, and whole operations on them.
-- No constraint forbids a second payment of a key: that is what the checker looks for.

CREATE TABLE payment (client text COLLATE "C", id uuid DEFAULT gen_random_uuid(), key text, amount int, PRIMARY KEY (client, id));
CREATE TABLE inbox (client text COLLATE "C", id uuid DEFAULT gen_random_uuid(), message text, PRIMARY KEY (client, id));

CREATE FUNCTION pay(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    INSERT INTO payment (client, key, amount) VALUES (request->>'client', request->>'key', (request->>'amount')::int)
    RETURNING jsonb_build_object('payment', id)
$$;

-- After the provider was asked: the answer and the business row, in one transaction of this shard
CREATE FUNCTION settle(client text, key text, token uuid, amount int) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    made uuid := gen_random_uuid();
    answer bytea;
BEGIN
    PERFORM shard.own(client);
    answer := idem_complete_json(client, key, token, 201, jsonb_build_object('payment', made));
    INSERT INTO payment VALUES (client, made, key, amount);
    RETURN answer;
END
$$;

-- A message of a queue: the mark and its effect
CREATE FUNCTION receive(client text, message text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM shard.own(client);
    IF NOT idem_once(client, message) THEN
        RETURN false;
    END IF;
    INSERT INTO inbox (client, message) VALUES (receive.client, receive.message);
    RETURN true;
END
$$;
