/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  The background process that visits one database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_WORKER_H
#define IDEM_WORKER_H

/* Bounds of a visit, in ms: with other databases waiting, and without */
#define IDEM_VISIT_TURN			1000
#define IDEM_VISIT_MAX			10000

/* Longest pause between two batches, in ms */
#define IDEM_PACE_MAX			1000

/*
 * Longest wait for a lock on a table, in ms.  Below the default of
 * deadlock_timeout, so that it is the worker who gives way.
 */
#define IDEM_WORKER_LOCK_TIMEOUT	"500"

/*
 * How far the system clock may get away from the monotonic one between two
 * looks without having jumped, in us
 */
#define IDEM_CLOCK_TOLERANCE	(60 * INT64CONST(1000000))

extern void IdemHardenSession(const char *name);
extern PGDLLEXPORT void IdemWorkerMain(Datum main_arg);

#endif							/* IDEM_WORKER_H */
