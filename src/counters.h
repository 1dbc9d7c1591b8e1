/*-------------------------------------------------------------------------
 *
 * counters.h
 *	  What idem keeps in shared memory.  The locking contract is at the head
 *	  of counters.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_COUNTERS_H
#define IDEM_COUNTERS_H

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
	IdemVisitResult result;		/* how it ended */
	int			sqlstate;		/* of IDEM_VISIT_FAILED; 0 when not known */
} IdemVisit;

typedef struct IdemShared
{
	LWLock	   *lock;			/* protects what follows, atomics apart */

	pid_t		launcher;		/* the launcher, 0 when there is none */
	Latch	   *launcher_latch; /* wakes it, NULL when there is none */
	IdemVisit	visit;			/* the visit under way, or the last one */

	bool		notice_all;		/* more notices than there was room for */
	int			nnotices;		/* entries used in notices */
	Oid			notices[IDEM_MAX_NOTICES];	/* databases to look at soon */

	/*
	 * Raised whenever the launcher may have lost sight of a database that has
	 * the extension, so that every backend speaks up once more.  Starts at 1.
	 */
	pg_atomic_uint32 notice_round;
} IdemShared;

/* NULL when the library was not preloaded */
extern IdemShared *idem_shared;

extern void IdemSharedInit(void);

#endif							/* IDEM_COUNTERS_H */
