/*-------------------------------------------------------------------------
 *
 * call.c
 *	  idem_call: the whole cycle in one statement, one round trip.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "args.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "complete.h"
#include "launcher.h"
#include "miscadmin.h"
#include "outcome.h"
#include "reserve.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(idem_call);

/* Arguments of idem_call */
enum
{
	ARG_CLIENT, ARG_KEY, ARG_FN, ARG_REQUEST, ARG_FP, ARG_STATUS_CODE,
	ARG_RETENTION, ARG_WAIT
};

/* Columns of idem_call_result; the answer's are in the order of outcome.h */
enum
{
	RESULT_OUTCOME,
	RESULT_ANSWER,
	RESULT_NCOLS = RESULT_ANSWER + IDEM_ANSWER_NCOLS
};

/* The function has to be one jsonb to one jsonb */
static void
CheckSignature(Oid fn)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(fn));
	Form_pg_proc proc;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function with OID %u does not exist", fn),
				 errhint("Pass its name and argument type: 'charge(jsonb)'.")));
	proc = (Form_pg_proc) GETSTRUCT(tuple);
	if (proc->prokind != PROKIND_FUNCTION || proc->proretset ||
		proc->pronargs != 1 || proc->proargtypes.values[0] != JSONBOID ||
		proc->prorettype != JSONBOID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("fn is not a function from jsonb to jsonb: %s",
						format_procedure(fn)),
				 errhint("Pass a function that takes the request as jsonb and returns the body as jsonb.")));
	ReleaseSysCache(tuple);
}

/*
 * The function to call.  The function manager does not check who may call it,
 * so that is done here, as the executor does.
 */
static Oid
FunctionArg(FunctionCallInfo fcinfo)
{
	Oid			fn;

	if (PG_ARGISNULL(ARG_FN))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("fn is null"),
				 errhint("Pass the function that does the work: 'charge(jsonb)'.")));
	fn = PG_GETARG_OID(ARG_FN);
	CheckSignature(fn);
	if (!IdemMayExecute(fn, GetUserId()))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, get_func_name(fn));
	InvokeFunctionExecuteHook(fn);
	return fn;
}

/* Do the work: fn(request), as the caller; NULL is no body */
static Jsonb *
Work(Oid fn, Jsonb *request)
{
	LOCAL_FCINFO(call, 1);
	FmgrInfo	function;
	Datum		body;

	fmgr_info(fn, &function);
	InitFunctionCallInfoData(*call, &function, 1, InvalidOid, NULL, NULL);
	call->args[0].value = JsonbPGetDatum(request);
	call->args[0].isnull = (request == NULL);
	if (request == NULL && function.fn_strict)
		return NULL;
	body = FunctionCallInvoke(call);
	return call->isnull ? NULL : DatumGetJsonbP(body);
}

/*
 * idem_call(client, key, fn, request, fp, status_code, retention, wait)
 * returns idem_call_result
 *
 * Everything is checked before anything is reserved.  An error in the
 * function undoes the reservation along with its work.
 */
Datum
idem_call(PG_FUNCTION_ARGS)
{
	Datum		values[RESULT_NCOLS];
	bool		isnull[RESULT_NCOLS] = {false};
	IdemReserveArgs args;
	IdemReservation reservation;
	IdemAnswer	answer;
	Oid			fn;

	IdemKeyArgs(fcinfo, &args.ref);
	fn = FunctionArg(fcinfo);
	args.request = IdemRequestArg(fcinfo, ARG_REQUEST);
	args.fingerprint = IdemFingerprintArg(fcinfo, ARG_FP, args.request);
	answer.status_code = IdemStatusArg(fcinfo, ARG_STATUS_CODE);
	args.retention = IdemRetentionArg(fcinfo, ARG_RETENTION);
	args.lease = args.retention;	/* no other transaction will see it */
	args.wait = IdemWaitArg(fcinfo, ARG_WAIT);
	args.token = NULL;

	IdemLauncherNotice();
	IdemStoreReserve(&args, &reservation);
	values[RESULT_OUTCOME] = IdemOutcomeText(reservation.outcome);
	if (reservation.outcome == IDEM_NEW)
	{
		IdemJsonAnswer(&answer, Work(fn, args.request), NULL);
		IdemKeepAnswer(&args.ref, IdemRowToken(&reservation.row), &answer);
		IdemAnswerColumns(&answer, &values[RESULT_ANSWER], &isnull[RESULT_ANSWER]);
	}
	else
		IdemOutcomeAnswer(&reservation, &values[RESULT_ANSWER],
						  &isnull[RESULT_ANSWER]);
	return IdemResult(fcinfo, RESULT_NCOLS, values, isnull);
}
