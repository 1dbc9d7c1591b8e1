/*-------------------------------------------------------------------------
 *
 * store.h
 *	  What can be done with a key, one function each.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_H
#define IDEM_STORE_H

#include "idem.h"
#include "probe.h"
#include "utils/jsonb.h"

/*
 * Which key: the schema of the extension, and the key's two names, not
 * toasted and already checked.
 */
typedef struct IdemKeyRef
{
	Oid			nsp;
	text	   *client;
	text	   *key;
} IdemKeyRef;

/* A reservation as it is asked for; spans of time in microseconds */
typedef struct IdemReserveArgs
{
	IdemKeyRef	ref;
	bytea	   *fingerprint;
	int64		lease;			/* at most the retention */
	int64		retention;
	int64		wait;
	const pg_uuid_t *token;		/* NULL: a new one is drawn */
	Jsonb	   *request;		/* NULL: none is kept */
} IdemReserveArgs;

/* The answer to it */
typedef struct IdemReservation
{
	IdemOutcome outcome;
	int64		retry_after;	/* in_flight: whole seconds */
	IdemRow		row;			/* new, replay: the row as it is now */
} IdemReservation;

/* An answer to keep; NULL is told apart from empty */
typedef struct IdemAnswer
{
	int			status_code;
	Jsonb	   *headers;
	bytea	   *body;
} IdemAnswer;

/* What the owner changes of a key in progress; what is not set stays */
typedef struct IdemChange
{
	const char *command;		/* for an error message */
	int64		lease;			/* > 0: runs anew, in microseconds */
	text	   *recovery_point;
	Jsonb	   *recovery_data;	/* set along with recovery_point, even to NULL */
} IdemChange;

/* What a reservation would be told now */
typedef struct IdemForecast
{
	IdemOutcome outcome;
	int			attempt;		/* new: which it would be */
	int64		retry_after;	/* in_flight: whole seconds */
	IdemProbe	probe;			/* what there is of the key */
} IdemForecast;

extern IdemState IdemRowState(const IdemRow *row, TimestampTz now);

extern void IdemStoreReserve(const IdemReserveArgs *args,
							 IdemReservation *reservation);
extern void IdemStoreComplete(const IdemKeyRef *ref, const pg_uuid_t *token,
							  const IdemAnswer *answer);
extern void IdemStoreRelease(const IdemKeyRef *ref, const pg_uuid_t *token);
extern TimestampTz IdemStoreChange(const IdemKeyRef *ref, const pg_uuid_t *token,
								   const IdemChange *change);
extern bool IdemStoreClaim(const IdemKeyRef *ref, const pg_uuid_t *token,
						   int64 lease, IdemRow *row);
extern bool IdemStoreMark(const IdemKeyRef *ref, int64 retention);
extern int64 IdemStoreForget(const IdemKeyRef *ref);
extern void IdemStoreForesee(const IdemKeyRef *ref, bytea *fingerprint,
							 IdemForecast *forecast);
extern bool IdemStoreRead(const IdemKeyRef *ref, IdemRow *row);

#endif							/* IDEM_STORE_H */
