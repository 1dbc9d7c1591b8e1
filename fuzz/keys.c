/*-------------------------------------------------------------------------
 *
 * keys.c
 *	  Target: the Idempotency-Key header, and the derived key.
 *
 * An input is an encoding, then up to three strings that end with NUL: a header
 * value, which is also a client; a key; a step.
 *
 *-------------------------------------------------------------------------
 */
#include "fuzz.h"

#include "catalog/pg_collation_d.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"
#include "utils/builtins.h"
#include "utils/uuid.h"

#include "compat.h"
#include "idem.h"

extern Datum idem_parse_key(PG_FUNCTION_ARGS);
extern Datum idem_provider_key(PG_FUNCTION_ARGS);

/* The grammar of a header value, for the server's regular expressions */
#define STRING	"\"(?:[ !#-[\\]-~]|\\\\[\"\\\\])*\""
#define NUMBER	"-?(?:[0-9]{1,12}\\.[0-9]{1,3}|[0-9]{1,15})"
#define TOKEN	"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*"
#define BINARY	":(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2,3})?={0,2}:"
#define ITEM	"(?:" STRING "|" NUMBER "|" TOKEN "|" BINARY "|\\?[01])"
#define QUOTED	"^" STRING "(?:; *[a-z*][a-z0-9_.*-]*(?:=" ITEM ")?)*$"
#define BARE	"^[!#-+.-:<-[\\]-~-]+$"

#define MAX_HEADER_KEY	255

/*
 * Does a string match a regular expression?
 */
static bool
matches(const char *s, const char *pattern)
{
	return DatumGetBool(DirectFunctionCall2Coll(textregexeq, C_COLLATION_OID,
												PointerGetDatum(cstring_to_text(s)),
												PointerGetDatum(cstring_to_text(pattern))));
}

/*
 * The key that a header value names by the grammar; NULL for none.
 */
static char *
expected_key(const char *header)
{
	char	   *value;
	char	   *key;
	size_t		length;

	header += strspn(header, " \t");
	length = strlen(header);
	while (length > 0 && (header[length - 1] == ' ' || header[length - 1] == '\t'))
		length--;
	value = pnstrdup(header, length);

	if (value[0] != '"')
		key = matches(value, BARE) ? value : NULL;
	else if (!matches(value, QUOTED))
		key = NULL;
	else
	{
		char	   *to = key = value;
		const char *from = value + 1;

		while (*from != '"')
		{
			if (*from == '\\')
				from++;
			*to++ = *from++;
		}
		*to = '\0';
	}
	if (key != NULL && (key[0] == '\0' || strlen(key) > MAX_HEADER_KEY))
		return NULL;
	return key;
}

/*
 * Calls idem_parse_key; NULL for a value that it refuses.
 */
static char *
parsed_key(const char *header)
{
	NullableDatum arg = {PointerGetDatum(cstring_to_text(header)), false};
	int			sqlstate;
	Datum		key = call(idem_parse_key, 1, &arg, &sqlstate);

	if (sqlstate != 0)
	{
		MUST(sqlstate == ERRCODE_IDEM_INVALID_KEY);
		return NULL;
	}
	return TextDatumGetCString(key);
}

/*
 * Quotes a key as a header value.
 */
static char *
quoted(const char *key)
{
	StringInfoData value;

	initStringInfo(&value);
	appendStringInfoChar(&value, '"');
	for (; *key != '\0'; key++)
	{
		if (*key == '"' || *key == '\\')
			appendStringInfoChar(&value, '\\');
		appendStringInfoChar(&value, *key);
	}
	appendStringInfoString(&value, "\"; a=1;b");
	return value.data;
}

/*
 * A header value names the key that the grammar says, and the key quoted names
 * it, too.
 */
static void
check_header(const char *header)
{
	char	   *expected = expected_key(header);
	char	   *key = parsed_key(header);

	MUST((key == NULL) == (expected == NULL));
	if (key == NULL)
		return;
	MUST(strcmp(key, expected) == 0);

	key = parsed_key(quoted(key));
	MUST(key != NULL && strcmp(key, expected) == 0);
}

/*
 * Appends a length and the string in UTF-8; false where it cannot be converted.
 */
static bool
append_part(StringInfo buffer, const char *part)
{
	NullableDatum args[2] = {
		{PointerGetDatum(cstring_to_text(part)), false},
		{DirectFunctionCall1(namein, CStringGetDatum("UTF8")), false}
	};
	int			sqlstate;
	Datum		converted = call(pg_convert_to, 2, args, &sqlstate);
	bytea	   *utf8;
	uint32		length;

	if (sqlstate != 0)
		return false;
	utf8 = DatumGetByteaPP(converted);
	length = pg_hton32(VARSIZE_ANY_EXHDR(utf8));
	appendBinaryStringInfo(buffer, (char *) &length, sizeof(length));
	appendBinaryStringInfo(buffer, VARDATA_ANY(utf8), VARSIZE_ANY_EXHDR(utf8));
	return true;
}

/*
 * A derived key is what the description of it says.
 */
static void
check_provider_key(const char *client, const char *key, const char *step)
{
	const char *parts[3] = {client, key, step};
	NullableDatum args[3];
	StringInfoData buffer;
	int			sqlstate;
	pg_uuid_t  *uuid;
	uint8	   *digest;
	bool		convertible = true;

	for (int i = 0; i < 3; i++)
	{
		args[i].isnull = parts[i] == NULL;
		args[i].value = parts[i] == NULL ? (Datum) 0 : PointerGetDatum(cstring_to_text(parts[i]));
	}
	uuid = DatumGetUUIDP(call(idem_provider_key, 3, args, &sqlstate));

	if (client == NULL || key == NULL)
	{
		MUST(sqlstate == ERRCODE_NULL_VALUE_NOT_ALLOWED ||
			 sqlstate == ERRCODE_INVALID_PARAMETER_VALUE);
		return;
	}
	if (client[0] == '\0' || strlen(client) > IDEM_MAX_CLIENT_BYTES ||
		key[0] == '\0' || strlen(key) > IDEM_MAX_KEY_BYTES)
	{
		MUST(sqlstate == ERRCODE_INVALID_PARAMETER_VALUE);
		return;
	}

	initStringInfo(&buffer);
	for (int i = 0; i < 3; i++)
		convertible = convertible && append_part(&buffer, parts[i] == NULL ? "" : parts[i]);
	if (!convertible)
	{
		MUST(sqlstate == ERRCODE_CHARACTER_NOT_IN_REPERTOIRE ||
			 sqlstate == ERRCODE_UNTRANSLATABLE_CHARACTER);
		return;
	}

	MUST(sqlstate == 0);
	digest = (uint8 *) VARDATA_ANY(DatumGetByteaPP(sha256_of(buffer.data, buffer.len)));
	digest[6] = (digest[6] & 0x0F) | 0x80;
	digest[8] = (digest[8] & 0x3F) | 0x80;
	MUST(memcmp(digest, uuid->data, UUID_LEN) == 0);
}

void
fuzz_keys(Input *input)
{
	char	   *parts[3];

	take_encoding(input);
	for (int i = 0; i < 3; i++)
	{
		parts[i] = take_line(input);
		if (parts[i] != NULL &&
			!pg_verifymbstr(parts[i], strlen(parts[i]), true))
			return;
	}
	if (parts[0] != NULL)
		check_header(parts[0]);
	check_provider_key(parts[0], parts[1], parts[2]);
}
