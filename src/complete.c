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
#include "complete.h"
#include "document.h"
#include "mb/pg_wchar.h"
#include "outcome.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(idem_complete);
PG_FUNCTION_INFO_V1(idem_complete_bytes);
PG_FUNCTION_INFO_V1(idem_complete_json);

/* Arguments of all three */
enum
{
	ARG_CLIENT, ARG_KEY, ARG_TOKEN, ARG_STATUS_CODE, ARG_BODY, ARG_HEADERS
};

/* The status code of an answer */
int
IdemStatusArg(FunctionCallInfo fcinfo, int n)
{
	int			status;

	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("status_code is null"),
				 errhint("Pass the HTTP status code of the answer.")));
	status = PG_GETARG_INT32(n);
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

/*
 * An answer with a JSON body: the jsonb's own text, in UTF-8; NULL is no body.
 * Without headers of its own it says that it is JSON.
 */
void
IdemJsonAnswer(IdemAnswer *answer, Jsonb *body, Jsonb *headers)
{
	answer->body = NULL;
	if (body != NULL)
	{
		char	   *json;
		int			depth;

		IdemCheckSize(IdemDocumentBytes(body, &depth), "answer");
		json = JsonbToCString(NULL, &body->root, VARSIZE(body));
		answer->body = Utf8Bytes(json, strlen(json));
	}
	answer->headers = headers != NULL ? headers : IdemJsonHeaders();
}

/* Keep an answer that is not too large, under the token that owns the key */
void
IdemKeepAnswer(const IdemKeyRef *ref, const pg_uuid_t *token,
			   const IdemAnswer *answer)
{
	int64		bytes = 0;

	if (answer->body != NULL)
		bytes += VARSIZE_ANY_EXHDR(answer->body);
	if (answer->headers != NULL)
		bytes += IdemKeptBytes(answer->headers, "headers");
	IdemCheckSize(bytes, "answer");
	IdemStoreComplete(ref, token, answer);
}

/*
 * The part that all three share: the answer has its body and its headers, and
 * gets its status.
 */
static void
Complete(FunctionCallInfo fcinfo, IdemAnswer *answer)
{
	IdemKeyRef	ref;
	const pg_uuid_t *token;

	IdemKeyArgs(fcinfo, &ref);
	token = IdemTokenArg(fcinfo, ARG_TOKEN);
	answer->status_code = IdemStatusArg(fcinfo, ARG_STATUS_CODE);
	IdemKeepAnswer(&ref, token, answer);
}

/* idem_complete(client, key, token, status_code, body text, headers) */
Datum
idem_complete(PG_FUNCTION_ARGS)
{
	IdemAnswer	answer = {.headers = HeadersArg(fcinfo)};

	if (!PG_ARGISNULL(ARG_BODY))
	{
		text	   *body = PG_GETARG_TEXT_PP(ARG_BODY);

		answer.body = Utf8Bytes(VARDATA_ANY(body), VARSIZE_ANY_EXHDR(body));
	}
	Complete(fcinfo, &answer);
	PG_RETURN_VOID();
}

/* idem_complete_bytes(client, key, token, status_code, body bytea, headers) */
Datum
idem_complete_bytes(PG_FUNCTION_ARGS)
{
	IdemAnswer	answer = {.headers = HeadersArg(fcinfo)};

	if (!PG_ARGISNULL(ARG_BODY))
		answer.body = PG_GETARG_BYTEA_PP(ARG_BODY);
	Complete(fcinfo, &answer);
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
	IdemAnswer	answer;

	IdemJsonAnswer(&answer,
				   PG_ARGISNULL(ARG_BODY) ? NULL : PG_GETARG_JSONB_P(ARG_BODY),
				   HeadersArg(fcinfo));
	Complete(fcinfo, &answer);
	if (answer.body == NULL)
		PG_RETURN_NULL();
	PG_RETURN_BYTEA_P(answer.body);
}
