/*
 * driver: one load generator for PostgreSQL and Redis, so that the two are
 * compared through the same loop. libpq with prepared statements on the one
 * side, hiredis on the other, both through a Unix socket; one process and one
 * connection for each client; nothing is pipelined.
 *
 * usage: driver MODE CLIENTS WARM_UP SECONDS CONNINFO REDIS_SOCKET
 *
 *   bare          INSERT of a business row
 *   call          the same in idem_call, under a new key
 *   redis-cycle   SET NX EX of a new key, INSERT of the business row, SET of the answer
 *   select        SELECT of a stored answer by primary key
 *   replay        idem_reserve of a completed key
 *   redis-get     GET of a stored answer
 *
 * The keys 1 to 1000 of client 'r' are there for the last three. Prints the
 * transactions done and their rate.
 */
#include <hiredis/hiredis.h>
#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STORED_KEYS 1000
#define RETENTION "86400"

static PGconn *pg;
static redisContext *redis;
static uint64_t state;			/* of the random numbers */

static const char *const fingerprint = "\\x0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0";
static char answer[201];

static void
fail(const char *what)
{
	fprintf(stderr, "driver: %s", what);
	exit(1);
}

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* xorshift64* */
static uint64_t
draw(void)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return state * UINT64_C(2685821657736338717);
}

/* A key like a UUID, 36 bytes */
static void
draw_key(char *key)
{
	uint64_t	a = draw();
	uint64_t	b = draw();

	snprintf(key, 37, "%08x-%04x-4%03x-a%03x-%012llx", (unsigned) (a >> 32),
			 (unsigned) (a >> 16) & 0xffff, (unsigned) (a >> 4) & 0xfff,
			 (unsigned) (b >> 52), (unsigned long long) b & 0xffffffffffff);
}

static void
prepare(const char *name, const char *sql)
{
	PGresult   *result = PQprepare(pg, name, sql, 0, NULL);

	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		fail(PQerrorMessage(pg));
	PQclear(result);
}

/* The first column of the one row must be `expected` */
static void
execute(const char *name, int nparams, const char *const *params, const char *expected)
{
	PGresult   *result = PQexecPrepared(pg, name, nparams, params, NULL, NULL, 0);

	if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK)
		fail(PQerrorMessage(pg));
	if (expected != NULL && (PQntuples(result) != 1 || strcmp(PQgetvalue(result, 0, 0), expected) != 0))
		fail("unexpected answer of the server\n");
	PQclear(result);
}

static void
check_reply(redisReply *reply, bool found)
{
	if (reply == NULL || reply->type == REDIS_REPLY_ERROR || (reply->type == REDIS_REPLY_NIL) == found)
		fail("unexpected answer of Redis\n");
	freeReplyObject(reply);
}

static void
bare(void)
{
	execute("bare", 0, NULL, NULL);
}

static void
call(void)
{
	char		key[37];
	const char *params[] = {key};

	draw_key(key);
	execute("call", 1, params, "new");
}

static void
redis_cycle(void)
{
	char		key[37];

	draw_key(key);
	check_reply(redisCommand(redis, "SET c:%s %s NX EX " RETENTION, key, fingerprint), true);
	bare();
	check_reply(redisCommand(redis, "SET c:%s %s EX " RETENTION, key, answer), true);
}

static void
stored_key(char *key)
{
	snprintf(key, 37, "%d", (int) (draw() % STORED_KEYS) + 1);
}

static void
select_row(void)
{
	char		key[37];
	const char *params[] = {key};

	stored_key(key);
	execute("select", 1, params, "200");
}

static void
replay(void)
{
	char		key[37];
	const char *params[] = {key};

	stored_key(key);
	execute("replay", 1, params, "replay");
}

static void
redis_get(void)
{
	char		key[37];

	stored_key(key);
	check_reply(redisCommand(redis, "GET r:%s", key), true);
}

static const struct mode
{
	const char *name;
	void		(*transaction) (void);
	const char *sql;			/* prepared under the mode's name, unless NULL */
}			modes[] =
{
	{"bare", bare, "INSERT INTO payment (client, amount) VALUES ('c', 1990)"},
	{"call", call, "SELECT outcome, status_code, headers, body FROM idem_call('c', $1, 'pay(jsonb)', '{\"amount\": 1990}', '\\x01')"},
	{"redis-cycle", redis_cycle, NULL},
	{"select", select_row, "SELECT status_code, headers, body FROM idem_key WHERE client = 'r' AND key = $1"},
	{"replay", replay, "SELECT outcome, status_code, headers, body FROM idem_reserve('r', $1, '\\x01')"},
	{"redis-get", redis_get, NULL},
};

#define NMODES ((int) (sizeof(modes) / sizeof(modes[0])))

/* Run transactions for so many seconds; how many there were */
static long
run_for(const struct mode *mode, double seconds)
{
	double		end = now() + seconds;
	long		count = 0;

	while (now() < end)
	{
		mode->transaction();
		count++;
	}
	return count;
}

static void
run_client(const struct mode *mode, const char *conninfo, const char *socket,
		   double warm_up, double seconds, long *done, double *taken)
{
	double		start;
	int			i;

	pg = PQconnectdb(conninfo);
	if (PQstatus(pg) != CONNECTION_OK)
		fail(PQerrorMessage(pg));
	for (i = 0; i < NMODES; i++)
		if (modes[i].sql != NULL)
			prepare(modes[i].name, modes[i].sql);
	if (strncmp(mode->name, "redis", 5) == 0)
	{
		redis = redisConnectUnix(socket);
		if (redis == NULL || redis->err)
			fail("cannot connect to Redis\n");
		for (i = 1; i <= STORED_KEYS; i++)
			check_reply(redisCommand(redis, "SET r:%d %s", i, answer), true);
	}
	(void) run_for(mode, warm_up);
	start = now();
	*done = run_for(mode, seconds);
	*taken = now() - start;
	PQfinish(pg);
}

int
main(int argc, char **argv)
{
	const struct mode *mode = NULL;
	int			clients;
	long	   *done;
	double	   *taken;
	long		total = 0;
	double		rate = 0;
	int			status = 0;
	int			i;

	for (i = 0; argc == 7 && i < NMODES; i++)
		if (strcmp(modes[i].name, argv[1]) == 0)
			mode = &modes[i];
	if (mode == NULL)
		fail("usage: driver MODE CLIENTS WARM_UP SECONDS CONNINFO REDIS_SOCKET\n");
	clients = atoi(argv[2]);
	memset(answer, 'x', 200);

	done = mmap(NULL, clients * (sizeof(long) + sizeof(double)), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (done == MAP_FAILED)
		fail("out of memory\n");
	taken = (double *) (done + clients);
	for (i = 0; i < clients; i++)
	{
		if (fork() == 0)
		{
			state = ((uint64_t) getpid() << 32) ^ (uint64_t) (now() * 1e9) ^ 0x9e3779b97f4a7c15;
			run_client(mode, argv[5], argv[6], atof(argv[3]), atof(argv[4]), &done[i], &taken[i]);
			exit(0);
		}
	}
	for (i = 0; i < clients; i++)
	{
		int			child;

		wait(&child);
		status |= child;
	}
	if (status != 0)
		return 1;
	for (i = 0; i < clients; i++)
	{
		total += done[i];
		rate += done[i] / taken[i];
	}
	printf("%ld transactions, %.1f per second\n", total, rate);
	return 0;
}
