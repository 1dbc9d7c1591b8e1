-- What the proxy has: no table and no key, only where a client lives. Every call runs as one transaction on that shard.
--
-- Named as idem's own functions. fn of idem_call is the name of a function on the shards.

CREATE EXTENSION plproxy;
CREATE SCHEMA shard;

CREATE FUNCTION shard.slot_of(client text) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN get_byte(decode(md5(client), 'hex'), 0) & 63;

CREATE TYPE idem_reservation AS (
    outcome text, token uuid, attempt integer, status_code integer, headers jsonb, body bytea, retry_after interval,
    recovery_point text, recovery_data jsonb);
CREATE TYPE idem_call_result AS (outcome text, status_code integer, headers jsonb, body bytea);
CREATE TYPE idem_key_state AS (
    state text, attempt integer, lease_until timestamptz, expires_at timestamptz, created_at timestamptz, completed_at timestamptz,
    status_code integer, recovery_point text);

CREATE FUNCTION idem_reserve(client text, key text, fp bytea DEFAULT NULL, lease interval DEFAULT NULL,
                             retention interval DEFAULT NULL, wait interval DEFAULT NULL, token uuid DEFAULT NULL,
                             request jsonb DEFAULT NULL) RETURNS idem_reservation LANGUAGE plproxy AS $$
    CLUSTER 'idem'; RUN ON shard.slot_of(client); TARGET shard.idem_reserve;
$$;

CREATE FUNCTION idem_complete_json(client text, key text, token uuid, status_code int, body jsonb, headers jsonb DEFAULT NULL)
RETURNS bytea LANGUAGE plproxy AS $$
    CLUSTER 'idem'; RUN ON shard.slot_of(client); TARGET shard.idem_complete_json;
$$;

CREATE FUNCTION idem_call(client text, key text, fn text, request jsonb, fp bytea DEFAULT NULL, status_code int DEFAULT 200,
                          retention interval DEFAULT NULL, wait interval DEFAULT NULL)
RETURNS idem_call_result LANGUAGE plproxy AS $$
    CLUSTER 'idem'; RUN ON shard.slot_of(client); TARGET shard.idem_call;
$$;

CREATE FUNCTION idem_once(client text, key text, retention interval DEFAULT NULL) RETURNS boolean LANGUAGE plproxy AS $$
    CLUSTER 'idem'; RUN ON shard.slot_of(client); TARGET shard.idem_once;
$$;

CREATE FUNCTION idem_lookup(client text, key text) RETURNS idem_key_state LANGUAGE plproxy AS $$
    CLUSTER 'idem'; RUN ON shard.slot_of(client); TARGET shard.idem_lookup;
$$;

CREATE FUNCTION settle(client text, key text, token uuid, amount int) RETURNS bytea LANGUAGE plproxy AS $$
    CLUSTER 'idem'; RUN ON shard.slot_of(client);
$$;

CREATE FUNCTION receive(client text, message text) RETURNS boolean LANGUAGE plproxy AS $$
    CLUSTER 'idem'; RUN ON shard.slot_of(client);
$$;
