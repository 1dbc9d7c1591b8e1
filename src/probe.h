/*-------------------------------------------------------------------------
 *
 * probe.h
 *	  Finding the row of a key, and waiting for those who are changing it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_PROBE_H
#define IDEM_PROBE_H

#include "table.h"

/*
 * What there is of a key.
 *
 * `row` is the version that counts: committed, or written by the current
 * transaction.  Of what other transactions have not finished yet, only their
 * ids are known: `changer` is changing or removing that row, `inserter` has
 * inserted one where there is none.  At most one of the two is set.
 */
typedef struct IdemProbe
{
	bool		found;
	IdemRow		row;
	TransactionId changer;
	TransactionId inserter;
	uint32		speculative;	/* inserter may yet withdraw the row alone */
} IdemProbe;

extern void IdemProbeKey(IdemTable *table, IdemProbe *probe);
extern bool IdemProbePlace(IdemTable *table, ItemPointer tid, IdemProbe *probe);
extern void IdemProbeFree(IdemProbe *probe);
extern bool IdemReadKey(IdemTable *table, Snapshot snapshot, IdemRow *row);
extern void IdemCheckVisible(IdemTable *table, const IdemProbe *probe);

extern bool IdemWaitAtMost(int ms, void (*wait) (void *), void *arg);
extern void IdemWaitForTransaction(TransactionId xid, TimestampTz since,
								   TimestampTz deadline);
extern void IdemPause(int64 waited_us, TimestampTz until);

#endif							/* IDEM_PROBE_H */
