/*-------------------------------------------------------------------------
 *
 * args.h
 *	  What SQL functions have in common: arguments and composite results.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_ARGS_H
#define IDEM_ARGS_H

#include "funcapi.h"
#include "store.h"

/*
 * The largest span of time that is told apart, in microseconds: a thousand
 * years.  Added to any clock reading it stays within timestamptz.
 */
#define IDEM_MAX_SPAN	(INT64CONST(1000) * 365 * USECS_PER_DAY)

extern Oid	IdemSchema(FunctionCallInfo fcinfo);
extern void IdemClientArg(FunctionCallInfo fcinfo, IdemKeyRef *ref);
extern void IdemKeyArgs(FunctionCallInfo fcinfo, IdemKeyRef *ref);
extern const pg_uuid_t *IdemTokenArg(FunctionCallInfo fcinfo, int n);
extern int64 IdemRetentionArg(FunctionCallInfo fcinfo, int n);
extern int64 IdemLeaseArg(FunctionCallInfo fcinfo, int n, int64 retention);
extern int64 IdemWaitArg(FunctionCallInfo fcinfo, int n);
extern void IdemCheckSize(int64 bytes, const char *what);
extern int64 IdemKeptBytes(Jsonb *doc, const char *what);
extern Datum IdemResult(FunctionCallInfo fcinfo, int ncols, Datum *values,
						bool *isnull);
extern ReturnSetInfo *IdemResultSet(FunctionCallInfo fcinfo, int ncols);

#endif							/* IDEM_ARGS_H */
