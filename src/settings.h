/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  The idem.* settings.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SETTINGS_H
#define IDEM_SETTINGS_H

#include "datatype/timestamp.h"

/* Defaults and bounds, in the unit of each setting */
#define IDEM_DEFAULT_LEASE				30000		/* ms */
#define IDEM_DEFAULT_MAX_LEASE			3600000		/* ms */
#define IDEM_DEFAULT_RETENTION			86400.0		/* s */
#define IDEM_MIN_RETENTION				0.001		/* s */
#define IDEM_MAX_RETENTION				3155760000.0	/* s: a hundred years */
#define IDEM_DEFAULT_RESPONSE_SIZE		1048576		/* bytes */
#define IDEM_MAX_RESPONSE_SIZE			536870912	/* bytes: half of what a value may have */
#define IDEM_DEFAULT_SWEEP_INTERVAL		60000		/* ms */
#define IDEM_MAX_SWEEP_INTERVAL			86400000	/* ms */
#define IDEM_DEFAULT_SWEEP_BATCH		1000		/* rows */
#define IDEM_MAX_SWEEP_BATCH			1000000		/* rows */
#define IDEM_DEFAULT_DATABASES			64
#define IDEM_MAX_DATABASES				10000

extern int	idem_lease;
extern int	idem_max_lease;
extern double idem_retention;
extern int	idem_wait_timeout;
extern int	idem_max_response_size;
extern char *idem_client;
extern bool idem_sweeper;
extern int	idem_sweep_interval;
extern int	idem_sweep_batch;
extern int	idem_max_databases;

extern void IdemDefineSettings(void);

/* The settings that are spans of time, in microseconds */
#define IdemLeaseSetting()		((int64) idem_lease * 1000)
#define IdemMaxLeaseSetting()	((int64) idem_max_lease * 1000)
#define IdemWaitSetting()		((int64) idem_wait_timeout * 1000)
#define IdemRetentionSetting()	((int64) (idem_retention * USECS_PER_SEC))

#endif							/* IDEM_SETTINGS_H */
