/*-------------------------------------------------------------------------
 *
 * reserve.h
 *	  Arguments that idem_reserve and idem_call have in common.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RESERVE_H
#define IDEM_RESERVE_H

#include "fmgr.h"
#include "utils/jsonb.h"

extern Jsonb *IdemRequestArg(FunctionCallInfo fcinfo, int n);
extern bytea *IdemFingerprintArg(FunctionCallInfo fcinfo, int n, Jsonb *request);

#endif							/* IDEM_RESERVE_H */
