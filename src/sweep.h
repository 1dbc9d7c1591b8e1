/*-------------------------------------------------------------------------
 *
 * sweep.h
 *	  Removing expired keys and finding stale leases, in bounded steps.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SWEEP_H
#define IDEM_SWEEP_H

#include "counters.h"
#include "reminder.h"
#include "storage/block.h"

/*
 * One visit to one database: what it has to do and what it has done.  Lives
 * across transactions.
 */
typedef struct IdemSweep
{
	Oid			nsp;			/* schema of the extension */
	int64		batch;			/* most rows removed in one step */
	bool		by_hand;		/* in a caller's transaction */
	TimestampTz horizon;		/* what expired later is left, until then */
	MemoryContext context;		/* of what outlives a transaction */
	bool		reminders_read; /* the leases have been looked at */
	bool		leases_known;	/* ... to the end, at least once */
	bool		leases_only;	/* finish looking at them, and no more */
	IdemReminderPass *leases;	/* the pass over them under way, or NULL */
	bool		was_leases;		/* the last step was one of that pass */
	bool		leases_over;	/* it has come to its end */
	bool		walked;			/* the walk of this visit is over */
	bool		walking;		/* the fields below are set */
	BlockNumber nblocks;		/* of the table, when last looked */
	BlockNumber next;			/* where the walk goes on */
	BlockNumber saved;			/* where idem_state says it does */
	BlockNumber round;			/* blocks left until it has been round once */
	BlockNumber quota;			/* blocks it may read where nothing is expired */
	int64		expired;		/* keys removed */
	int64		stale;			/* leases found to have become stale */
	TimestampTz began;
	int64		read_blocks;	/* blocks that the walk read */
	int64		read_keys;		/* keys in them that are not expired */
	int64		read_bytes;		/* what those take */
	TimestampTz removed_end;	/* earliest end of a key that it removed */
	IdemPass	pass;			/* what is known of the tables so far */
} IdemSweep;

extern void IdemSweepBegin(IdemSweep *sweep, Oid nsp, int batch,
						   MemoryContext context);
extern bool IdemSweepStep(IdemSweep *sweep);
extern void IdemSweepReport(IdemSweep *sweep);

#endif							/* IDEM_SWEEP_H */
