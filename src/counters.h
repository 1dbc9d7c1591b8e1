/*-------------------------------------------------------------------------
 *
 * counters.h
 *	  What idem keeps in shared memory: what has been counted, and what the
 *	  launcher and its workers tell each other.  The locking contract is at
 *	  the head of counters.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_COUNTERS_H
#define IDEM_COUNTERS_H

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

/* Databases that can have asked for a visit before the launcher looks */
#define IDEM_MAX_NOTICES		64

/* How a visit to a database ended */
typedef enum IdemVisitResult
{
	IDEM_VISIT_UNREPORTED,		/* running, or the process never got to say */
	IDEM_VISIT_DONE,			/* nothing left to do for now */
	IDEM_VISIT_MORE,			/* left early with work left over */
	IDEM_VISIT_ABSENT,			/* the extension is not there */
	IDEM_VISIT_YIELDED,			/* somebody held, or wanted, a lock on it */
	IDEM_VISIT_GONE,			/* the database does not exist any more */
	IDEM_VISIT_STOPPED,			/* told to stop */
	IDEM_VISIT_FAILED			/* an error; sqlstate says which */
} IdemVisitResult;

/* Whether those who listen know of the leases that have become stale */
typedef enum IdemTelling
{
	IDEM_TELL,					/* they may not: tell them with the next pass */
	IDEM_TOLD,
	IDEM_TELLING_REFUSED		/* that failed, and the log says so */
} IdemTelling;

/*
 * The visit under way.  There is one slot because there is one worker at a
 * time; a worker that finds another serial in it was asked for by a launcher
 * that is no more, and leaves.
 */
typedef struct IdemVisit
{
	uint32		serial;			/* number of the visit, the worker's argument */
	Oid			database;		/* where to */
	NameData	name;			/* its name when the launcher last looked */
	int			known_failure;	/* SQLSTATE the log has already, or 0 */
	pid_t		worker;			/* who is on the visit; 0 before and after */
	bool		hurry;			/* other databases are waiting */
	int64		clock_offset;	/* system clock less monotonic one, in us */
	int64		clock_lead;		/* of that not believed yet, in us */
	IdemTelling telling;		/* before the visit, and after it */
	IdemVisitResult result;		/* how it ended */
	int			sqlstate;		/* of IDEM_VISIT_FAILED; 0 when not known */
} IdemVisit;

/*
 * What is counted, in each database: calls by what they were answered,
 * whether or not their transactions commit, and what the sweep did.
 */
typedef enum IdemCounter
{
	IDEM_COUNT_RESERVED,		/* new, first attempt */
	IDEM_COUNT_TAKEN_OVER,		/* new, a later attempt */
	IDEM_COUNT_REPEATED,		/* new, again for the holder of the token */
	IDEM_COUNT_REPLAY,
	IDEM_COUNT_IN_FLIGHT,
	IDEM_COUNT_MISMATCH,
	IDEM_COUNT_COMPLETED,
	IDEM_COUNT_RELEASED,
	IDEM_COUNT_LEASE_LOST,		/* ID001 */
	IDEM_COUNT_RENEWED,
	IDEM_COUNT_CHECKPOINTS,
	IDEM_COUNT_CLAIMED,			/* by idem_claim_stale */
	IDEM_COUNT_ONCE_FIRST,
	IDEM_COUNT_ONCE_SEEN,
	IDEM_COUNT_WAITS,			/* reservations that waited */
	IDEM_COUNT_WAIT_TIME,		/* how long, in us */
	IDEM_COUNT_FORGOTTEN,		/* keys removed by idem_forget */
	IDEM_COUNT_EXPIRED,			/* keys removed by the sweep */
	IDEM_COUNT_STALE,			/* leases that it found stale */
	IDEM_COUNT_PASSES,			/* times that it went over the tables */
	IDEM_NCOUNTERS
} IdemCounter;

/* What the last pass of the sweep over a database's tables found */
typedef struct IdemPass
{
	TimestampTz ended;			/* 0: there was none yet */
	int64		duration;		/* in us, pauses included */
	TimestampTz oldest_expired; /* end of the oldest expired key it left; 0: none */
	TimestampTz oldest_stale;	/* end of the oldest lease left stale; 0: none */
	int64		keys;			/* stored, by what it read of the table */
	int64		row_bytes;		/* what these take in the table itself */
	int64		bytes;			/* on disk: tables, indexes, TOAST, reminders */
} IdemPass;

/*
 * Counters come several times over, so that backends on different processors
 * seldom write to one cache line; a process always takes the same ones.
 */
#define IDEM_STRIPES			8

typedef union IdemStripe
{
	pg_atomic_uint64 counts[IDEM_NCOUNTERS];
	char		pad[TYPEALIGN(PG_CACHE_LINE_SIZE,
							  IDEM_NCOUNTERS * sizeof(pg_atomic_uint64))];
} IdemStripe;

/* One database's share */
typedef struct IdemTally
{
	IdemStripe	stripes[IDEM_STRIPES];
	Oid			database;		/* whose; InvalidOid: free */
	TimestampTz reset;			/* when counting began */
	IdemPass	pass;			/* the last one */
} IdemTally;

/* The same, added up, for one reader */
typedef struct IdemTotals
{
	Oid			database;
	TimestampTz reset;
	IdemPass	pass;
	uint64		counts[IDEM_NCOUNTERS];
} IdemTotals;

typedef struct IdemShared
{
	LWLock	   *lock;			/* protects what follows, atomics apart */

	pid_t		launcher;		/* the launcher, 0 when there is none */
	Latch	   *launcher_latch; /* wakes it, NULL when there is none */
	IdemVisit	visit;			/* the visit under way, or the last one */

	bool		no_slot;		/* the server has no slot for a worker */

	bool		notice_all;		/* more notices than there was room for */
	int			nnotices;		/* entries used in notices */
	Oid			notices[IDEM_MAX_NOTICES];	/* databases to look at soon */

	/*
	 * Raised whenever the launcher may have lost sight of a database that has
	 * the extension, so that every backend speaks up once more.  Starts at 1.
	 */
	pg_atomic_uint32 notice_round;

	/* Raised when a tally becomes free, so that who found none looks again */
	pg_atomic_uint32 tallies_freed;
	int			ntallies;		/* idem.max_databases, at the server's start */
	IdemTally	tallies[FLEXIBLE_ARRAY_MEMBER];
} IdemShared;

/* Microseconds on a clock that nobody sets */
extern int64 IdemMonotonicTime(void);

/* NULL when the library was not preloaded */
extern IdemShared *idem_shared;

extern void IdemSharedInit(void);

extern void IdemCountShared(IdemCounter counter, uint64 n);
extern void IdemReportPass(const IdemPass *pass);
extern bool IdemTallyHere(void);
extern int	IdemReadTallies(IdemTotals *totals, int max);
extern void IdemResetTally(void);
extern void IdemFreeTallies(void);

/* Count something that happened in this database; free without preloading */
static inline void
IdemCountBy(IdemCounter counter, uint64 n)
{
	if (idem_shared != NULL)
		IdemCountShared(counter, n);
}

static inline void
IdemCount(IdemCounter counter)
{
	IdemCountBy(counter, 1);
}

#endif							/* IDEM_COUNTERS_H */
