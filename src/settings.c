/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The idem.* settings, nothing else.
 *
 * Spans of time that a caller may choose are user settings; what protects
 * the whole database (how long keys are kept, how much an answer may hold,
 * which client a role may speak for) takes a superuser; what the background
 * worker reads changes with a reload.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "miscadmin.h"
#include "settings.h"
#include "utils/guc.h"

int			idem_lease = IDEM_DEFAULT_LEASE;
int			idem_max_lease = IDEM_DEFAULT_MAX_LEASE;
double		idem_retention = IDEM_DEFAULT_RETENTION;
int			idem_wait_timeout = 0;
int			idem_max_response_size = IDEM_DEFAULT_RESPONSE_SIZE;
char	   *idem_client = NULL;
bool		idem_sweeper = true;
int			idem_sweep_interval = IDEM_DEFAULT_SWEEP_INTERVAL;
int			idem_sweep_batch = IDEM_DEFAULT_SWEEP_BATCH;
int			idem_max_databases = IDEM_DEFAULT_DATABASES;

/* How long things last, and how much they hold */
static void
DefineCallSettings(void)
{
	DefineCustomIntVariable("idem.lease",
							"How long a reservation may stay unanswered before a retry may take it over.",
							"Longer than the slowest call to another system with all its time-outs.",
							&idem_lease, IDEM_DEFAULT_LEASE, 1, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("idem.max_lease",
							"Longest lease that a call may ask for.",
							"Refuses, for instance, a driver's milliseconds read as seconds.",
							&idem_max_lease, IDEM_DEFAULT_MAX_LEASE, 1, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomRealVariable("idem.retention",
							 "How long a key is remembered, at most.",
							 "A call may ask for less. After it the key is absent and may be used again.",
							 &idem_retention, IDEM_DEFAULT_RETENTION,
							 IDEM_MIN_RETENTION, IDEM_MAX_RETENTION,
							 PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("idem.wait_timeout",
							"How long idem_reserve waits for another request with the same key to end.",
							"0 answers in_flight at once.",
							&idem_wait_timeout, 0, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("idem.max_response_size",
							"Most bytes that body and headers of an answer, or a request kept with a key, may have.",
							NULL,
							&idem_max_response_size, IDEM_DEFAULT_RESPONSE_SIZE,
							0, IDEM_MAX_RESPONSE_SIZE,
							PGC_SUSET, GUC_UNIT_BYTE, NULL, NULL, NULL);
	DefineCustomStringVariable("idem.client",
							   "The one client that the role may speak for.",
							   "Set with ALTER ROLE; empty means any client.",
							   &idem_client, "",
							   PGC_SUSET, 0, NULL, NULL, NULL);
}

/* What the background worker does */
static void
DefineSweepSettings(void)
{
	DefineCustomBoolVariable("idem.sweeper",
							 "Whether the background worker removes expired keys and finds stale leases.",
							 NULL,
							 &idem_sweeper, true,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idem.sweep_interval",
							"Pause of the background worker between two visits to a database.",
							NULL,
							&idem_sweep_interval, IDEM_DEFAULT_SWEEP_INTERVAL,
							1, IDEM_MAX_SWEEP_INTERVAL,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("idem.sweep_batch",
							"Most rows that the background worker removes in one transaction.",
							NULL,
							&idem_sweep_batch, IDEM_DEFAULT_SWEEP_BATCH,
							1, IDEM_MAX_SWEEP_BATCH,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
}

/*
 * How much shared memory there is.  Without preloading there is none, and a
 * setting that takes a restart could not be defined any more.
 */
static void
DefineMemorySettings(void)
{
	DefineCustomIntVariable("idem.max_databases",
							"Databases that idem_stat has room for.",
							"Those beyond it are swept but not counted.",
							&idem_max_databases, IDEM_DEFAULT_DATABASES,
							1, IDEM_MAX_DATABASES,
							process_shared_preload_libraries_in_progress ?
							PGC_POSTMASTER : PGC_SIGHUP,
							0, NULL, NULL, NULL);
}

/* Define every setting; called once, when the library is loaded */
void
IdemDefineSettings(void)
{
	DefineCallSettings();
	DefineSweepSettings();
	DefineMemorySettings();
	MarkGUCPrefixReserved("idem");
}
