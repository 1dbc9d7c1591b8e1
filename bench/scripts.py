"""What pgbench runs: the same work in the ways that are compared."""

from suite import ANSWER, DRAW_KEY, FINGERPRINT, KEY

WORK = "INSERT INTO payment (client, amount) VALUES ('c', 1990);\n"

# In one statement

INSERT = WORK
CALL = DRAW_KEY + f"""SELECT outcome, status_code, headers, body
  FROM idem_call('c', {KEY}, 'pay(jsonb)', '{{"amount": 1990}}', {FINGERPRINT});
"""
CTE = DRAW_KEY + f"""WITH reserved AS MATERIALIZED (
    SELECT * FROM idem_reserve('c', {KEY}, {FINGERPRINT})
), work AS (
    INSERT INTO payment (client, amount) SELECT 'c', 1990 FROM reserved WHERE outcome = 'new' RETURNING id
), answer AS MATERIALIZED (
    SELECT idem_complete_json('c', {KEY}, token, 201, jsonb_build_object('payment', id)) AS body FROM reserved, work
)
SELECT outcome, coalesce(status_code, 201), coalesce(answer.body, reserved.body)
  FROM reserved LEFT JOIN answer ON true;
"""
FUNCTION = "SELECT pay('{\"amount\": 1990}');\n"

# In five statements


def five(reserve, complete):
    """The five statements with these two functions."""
    return (DRAW_KEY + f"BEGIN;\nSELECT token FROM {reserve}('c', {KEY}, {FINGERPRINT}) \\gset\n" + WORK +
            f"SELECT {complete}('c', {KEY}, :token::uuid, 200, {ANSWER});\nCOMMIT;\n")


# Done by hand. A stale or expired row is taken over by the same statement; where
# it returns nothing, one has to look why.
UPSERT = f"""INSERT INTO hand_key AS h (expires_at, lease_until, began_at, token, client, key, fingerprint)
VALUES (clock_timestamp() + '%(retention)s', clock_timestamp() + '30 s', clock_timestamp(),
        gen_random_uuid(), 'c', %(key)s, {FINGERPRINT})
ON CONFLICT (client, key) DO UPDATE SET expires_at = excluded.expires_at, lease_until = excluded.lease_until,
    began_at = excluded.began_at, token = excluded.token, fingerprint = excluded.fingerprint,
    attempt = CASE WHEN h.expires_at > clock_timestamp() THEN coalesce(h.attempt, 1) + 1 END,
    created_at = CASE WHEN h.expires_at > clock_timestamp() THEN coalesce(h.created_at, h.began_at) END,
    status_code = NULL, completed_at = NULL, headers = NULL, body = NULL
WHERE h.expires_at <= clock_timestamp()
   OR h.completed_at IS NULL AND h.lease_until <= clock_timestamp() AND h.fingerprint = excluded.fingerprint
RETURNING token"""
LOOK = f"""SELECT fingerprint = {FINGERPRINT} AS same, completed_at IS NOT NULL AS completed, status_code, headers, body
  FROM hand_key WHERE client = 'c' AND key = 'hot' AND expires_at > clock_timestamp();
"""
UPDATE = f"""UPDATE hand_key SET status_code = 200, body = convert_to({ANSWER}, 'UTF8'), headers = NULL,
    completed_at = clock_timestamp()
 WHERE client = 'c' AND key = {KEY} AND token = :token::uuid AND completed_at IS NULL AND expires_at > clock_timestamp();
"""


def by_hand(retention="24 h"):
    upsert = UPSERT % {"retention": retention, "key": KEY}
    return DRAW_KEY + "BEGIN;\n" + upsert + " \\gset\n" + WORK + UPDATE + "COMMIT;\n"


BARE = "BEGIN;\n" + WORK + "COMMIT;\n"
FIVE = five("idem_reserve", "idem_complete")
EMPTY = five("bench_empty_reserve", "bench_empty_complete")
PLPGSQL = five("bench_plpgsql_upsert", "bench_plpgsql_complete")
HAND = by_hand()

# Retries of one key that is completed

HOT = f"SELECT outcome, status_code, headers, body FROM idem_reserve('c', 'hot', {FINGERPRINT});\n"
HOT_UPSERT = UPSERT % {"retention": "24 h", "key": "'hot'"} + ";\n" + LOOK
HOT_SELECT = "SELECT status_code, headers, body FROM idem_key WHERE client = 'c' AND key = 'hot';\n"
