/*-------------------------------------------------------------------------
 *
 * idem.h
 *	  Words that every part of idem shares: outcomes, states, limits and
 *	  SQLSTATEs.  No functions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_H
#define IDEM_H

#include "utils/elog.h"

/*
 * Limits on arguments, in bytes.  Client and key together stay well below
 * the 2,704 bytes that nbtree accepts for one entry (BTMaxItemSize), so that
 * every key is stored or refused alike, compressible or not.
 */
#define IDEM_MAX_CLIENT_BYTES		255
#define IDEM_MAX_KEY_BYTES			1000
#define IDEM_MAX_FINGERPRINT_BYTES	64

/*
 * Levels of a JSON document that is kept.  The server reads ten times as many
 * with the default max_stack_depth.
 */
#define IDEM_MAX_NESTING			1000

/* Length of a canonical fingerprint: SHA-256 */
#define IDEM_FINGERPRINT_BYTES		32

/* Status codes a stored answer may have (RFC 9110, section 15) */
#define IDEM_MIN_STATUS				100
#define IDEM_MAX_STATUS				599

/* Errors of our own; a client branches on these */
#define ERRCODE_IDEM_LEASE_LOST			MAKE_SQLSTATE('I','D','0','0','1')
#define ERRCODE_IDEM_NOT_RESERVED		MAKE_SQLSTATE('I','D','0','0','2')
#define ERRCODE_IDEM_ALREADY_COMPLETED	MAKE_SQLSTATE('I','D','0','0','3')
#define ERRCODE_IDEM_INVALID_KEY		MAKE_SQLSTATE('I','D','4','0','0')

/* What idem_reserve can say: exactly these four */
typedef enum IdemOutcome
{
	IDEM_NEW,					/* the caller owns the key and does the work */
	IDEM_IN_FLIGHT,				/* somebody else holds it */
	IDEM_REPLAY,				/* the stored answer */
	IDEM_MISMATCH				/* the key belongs to another request */
} IdemOutcome;

/*
 * The states of a key.  There is no state column: completed_at and the two
 * points in time say it, so that "lease over" and "retention over" hold from
 * that very moment on, whether or not anybody has looked.
 */
typedef enum IdemState
{
	IDEM_ABSENT,				/* no row, or its retention has passed */
	IDEM_IN_PROGRESS,			/* reserved, the lease is live */
	IDEM_STALE,					/* reserved, the lease is over */
	IDEM_COMPLETED				/* the answer is kept */
} IdemState;

#endif							/* IDEM_H */
