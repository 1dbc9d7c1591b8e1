CREATE EXTENSION idem;
CREATE EXTENSION amcheck;

-- What the work leaves behind, with the window of time that its key was granted.
-- No constraint forbids a second row: that is what the checker looks for.
CREATE TABLE business (id uuid, client text, key text, attempt int, token uuid, began_at timestamptz, expires_at timestamptz);
CREATE TABLE effect (LIKE business);
CREATE TABLE inbox (LIKE business);

CREATE FUNCTION work(asked jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    done uuid := gen_random_uuid();
    n int;
BEGIN
    INSERT INTO business
    SELECT done, k.client, k.key, coalesce(k.attempt, 1), k.token, k.began_at, k.expires_at
      FROM idem_key k
     WHERE k.client = asked->>'client' AND k.key = asked->>'key'
     ORDER BY k.began_at DESC LIMIT 1;
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n <> 1 THEN
        RAISE EXCEPTION 'new, and % rows of the key', n USING ERRCODE = 'TT001';
    END IF;
    RETURN jsonb_build_object('id', done);
END
$$;

-- The work that fails after it did something
CREATE FUNCTION work_in_vain(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    PERFORM work(request);
    RAISE EXCEPTION 'in vain' USING ERRCODE = 'TT000';
END
$$;

-- Many keys in one statement. Who comes later is faster, since most of what it meets is
-- in flight, and catches up: then both are at the same key within microseconds, again and again.
CREATE FUNCTION rush(batch text, n int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    r record;
    work uuid;
    done int := 0;
BEGIN
    FOR i IN 1..n LOOP
        SELECT * INTO r FROM idem_reserve('rush', batch || '/' || i,
            request => jsonb_build_object('client', 'rush', 'key', batch || '/' || i, 'amount', 7));
        CONTINUE WHEN r.outcome <> 'new';
        work := gen_random_uuid();
        INSERT INTO business
        SELECT work, k.client, k.key, coalesce(k.attempt, 1), k.token, k.began_at, k.expires_at
          FROM idem_key k
         WHERE k.client = 'rush' AND k.key = batch || '/' || i AND k.token = r.token;
        PERFORM idem_complete('rush', batch || '/' || i, r.token, 200, work::text);
        done := done + 1;
    END LOOP;
    RETURN done;
END
$$;

-- The same for takeovers: leases that are over at once.
CREATE TABLE granted (key text, attempt int, token uuid);

CREATE FUNCTION hurry(batch text, n int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    r record;
    done int := 0;
BEGIN
    FOR i IN 1..n LOOP
        SELECT * INTO r FROM idem_reserve('hurry', batch || '/' || i, lease => '1 ms',
            request => jsonb_build_object('client', 'hurry', 'key', batch || '/' || i, 'amount', 7));
        CONTINUE WHEN r.outcome <> 'new';
        INSERT INTO granted VALUES (batch || '/' || i, r.attempt, r.token);
        done := done + 1;
    END LOOP;
    RETURN done;
END
$$;
