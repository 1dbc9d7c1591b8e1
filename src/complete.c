/*-------------------------------------------------------------------------
 *
 * complete.c
 *	  idem_complete and its two other forms: keep the answer.
 *
 * They differ in the type of the body alone.  What is kept are bytes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "args.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(idem_complete);
PG_FUNCTION_INFO_V1(idem_complete_bytes);
PG_FUNCTION_INFO_V1(idem_complete_json);

/* Arguments of all three */
enum
{
	ARG_CLIENT, ARG_KEY, ARG_TOKEN, ARG_STATUS_CODE, ARG_BODY, ARG_HEADERS
};

static int
StatusArg(FunctionCallInfo fcinfo)
{
	int			status;

	if (PG_ARGISNULL(ARG_STATUS_CODE))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("status_code is null"),
				 errhint("Pass the HTTP status code of the answer.")));
	status = PG_GETARG_INT32(ARG_STATUS_CODE);
	if (status < IDEM_MIN_STATUS || status > IDEM_MAX_STATUS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("status_code %d is out of range", status),
				 errhint("An HTTP status code is %d to %d.",
						 IDEM_MIN_STATUS, IDEM_MAX_STATUS)));
	return status;
}

/* Headers: an object, or an array where order and repeats matter */
static Jsonb *
HeadersArg(FunctionCallInfo fcinfo)
{
	Jsonb	   *headers;

	if (PG_ARGISNULL(ARG_HEADERS))
		return NULL;
	headers = PG_GETARG_JSONB_P(ARG_HEADERS);
	if (JB_ROOT_IS_SCALAR(headers))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("headers is neither an object nor an array"),
				 errhint("Pass {\"name\": \"value\"}, or [[\"name\", \"value\"]] where order and repeats matter.")));
	return headers;
}

/* The text in UTF-8, whatever the server's encoding */
static bytea *
Utf8Bytes(const char *string, int length)
{
	char	   *utf8 = pg_server_to_any(string, length, PG_UTF8);

	return (bytea *) cstring_to_text_with_len(utf8, utf8 == string ?
											  length : strlen(utf8));
}

/* The part that all three share; body NULL: an answer without one */
static void
Complete(FunctionCallInfo fcinfo, bytea *body, Jsonb *headers)
{
	IdemKeyRef	ref;
	IdemAnswer	answer;
	const pg_uuid_t *token;

	IdemKeyArgs(fcinfo, &ref);
	token = IdemTokenArg(fcinfo, ARG_TOKEN);
	answer.status_code = StatusArg(fcinfo);
	answer.headers = headers;
	answer.body = body;
	IdemCheckSize((int64) (body == NULL ? 0 : VARSIZE_ANY_EXHDR(body)) +
				  (headers == NULL ? 0 : VARSIZE_ANY_EXHDR(headers)),
				  "answer");
	IdemStoreComplete(&ref, token, &answer);
}

/* idem_complete(client, key, token, status_code, body text, headers) */
Datum
idem_complete(PG_FUNCTION_ARGS)
{
	bytea	   *body = NULL;

	if (!PG_ARGISNULL(ARG_BODY))
	{
		text	   *arg = PG_GETARG_TEXT_PP(ARG_BODY);

		body = Utf8Bytes(VARDATA_ANY(arg), VARSIZE_ANY_EXHDR(arg));
	}
	Complete(fcinfo, body, HeadersArg(fcinfo));
	PG_RETURN_VOID();
}

/* idem_complete_bytes(client, key, token, status_code, body bytea, headers) */
Datum
idem_complete_bytes(PG_FUNCTION_ARGS)
{
	Complete(fcinfo,
			 PG_ARGISNULL(ARG_BODY) ? NULL : PG_GETARG_BYTEA_PP(ARG_BODY),
			 HeadersArg(fcinfo));
	PG_RETURN_VOID();
}

/*
 * idem_complete_json(client, key, token, status_code, body jsonb, headers)
 *
 * Returns the bytes stored, so that the first answer equals the replays.
 */
Datum
idem_complete_json(PG_FUNCTION_ARGS)
{
	Jsonb	   *headers = HeadersArg(fcinfo);
	bytea	   *body = NULL;

	if (!PG_ARGISNULL(ARG_BODY))
	{
		Jsonb	   *arg = PG_GETARG_JSONB_P(ARG_BODY);
		char	   *json = JsonbToCString(NULL, &arg->root, VARSIZE(arg));

		body = Utf8Bytes(json, strlen(json));
	}
	if (headers == NULL)
		headers = DatumGetJsonbP(DirectFunctionCall1(jsonb_in,
													 CStringGetDatum("{\"content-type\": \"application/json\"}")));
	Complete(fcinfo, body, headers);
	if (body == NULL)
		PG_RETURN_NULL();
	PG_RETURN_BYTEA_P(body);
}
