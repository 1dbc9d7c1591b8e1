/*-------------------------------------------------------------------------
 *
 * keys.c
 *	  Arguments that name a key, the Idempotency-Key header, and keys derived
 *	  for the next system down the line.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"
#include "utils/builtins.h"
#include "utils/uuid.h"

#include "compat.h"
#include "digest.h"
#include "idem.h"
#include "keys.h"

/* Length of a key that arrives in a header, in bytes */
#define MAX_HEADER_KEY		255

/* A value in an error message is cut after this many bytes */
#define VALUE_IN_MESSAGE	32

/* Digits in the numbers of a structured field (RFC 8941, 3.3.1 and 3.3.2) */
#define MAX_INTEGER_DIGITS	15
#define MAX_DECIMAL_DIGITS	12
#define MAX_FRACTION_DIGITS	3

/* What is left of a header value. */
typedef struct Cursor
{
	const char *at;
	const char *end;
} Cursor;

/*
 * The begin of a value, for an error message.
 *
 * A message must reach the client whatever is in the value, so control
 * characters are not shown; nor is anything but ASCII in a SQL_ASCII database,
 * where a character may have been cut in two.
 */
static char *
excerpt(text *value)
{
	int			length = VARSIZE_ANY_EXHDR(value);
	int			shown = pg_mbcliplen(VARDATA_ANY(value), length, VALUE_IN_MESSAGE);
	bool		ascii = GetDatabaseEncoding() == PG_SQL_ASCII;
	char	   *result = psprintf("%.*s%s", shown, VARDATA_ANY(value),
								  shown < length ? "..." : "");

	for (char *c = result; *c != '\0'; c++)
	{
		if (IS_HIGHBIT_SET(*c) ? ascii : (*c < 0x20 || *c == 0x7F))
			*c = '?';
	}
	return result;
}

/*
 * Checks an argument that must be there, not be empty and not be too long.
 */
static void
check_name(text *value, const char *what, int maxbytes)
{
	int			length;

	if (value == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s is null", what),
				 errhint("Pass a text of 1 to %d bytes.", maxbytes)));

	length = VARSIZE_ANY_EXHDR(value);
	if (length == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is empty", what),
				 errhint("Pass a text of 1 to %d bytes.", maxbytes)));
	if (length > maxbytes)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long: \"%s\"", what, excerpt(value)),
				 errdetail("It has %d bytes; at most %d are accepted.", length, maxbytes),
				 errhint("Pass a shorter text, or a hash of it.")));
}

/*
 * Checks a client argument.
 */
void
IdemCheckClient(text *client)
{
	check_name(client, "client", IDEM_MAX_CLIENT_BYTES);
}

/*
 * Checks a key argument.
 */
void
IdemCheckKey(text *key)
{
	check_name(key, "key", IDEM_MAX_KEY_BYTES);
}

/*
 * Refuses a header value.  A header that is there but cannot be read is never
 * taken for one that is not there.
 */
static void
invalid_header(text *header, const char *reason)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_INVALID_KEY),
			 errmsg("invalid Idempotency-Key header: %s", excerpt(header)),
			 errdetail("%s", reason),
			 errhint("Answer the request with status 400. The header is one key of 1 to %d visible ASCII characters, as a quoted string or bare.",
					 MAX_HEADER_KEY)));
}

static inline bool
is_lower(char c)
{
	return c >= 'a' && c <= 'z';
}

static inline bool
is_alpha(char c)
{
	return is_lower(c) || (c >= 'A' && c <= 'Z');
}

static inline bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/*
 * Is the next byte this one?  If so, goes past it.
 */
static bool
accept(Cursor *c, char expected)
{
	if (c->at == c->end || *c->at != expected)
		return false;
	c->at++;
	return true;
}

/*
 * Goes past digits; returns how many there were.
 */
static int
skip_digits(Cursor *c)
{
	const char *start = c->at;

	while (c->at < c->end && is_digit(*c->at))
		c->at++;
	return c->at - start;
}

/*
 * Reads a quoted string, the opening quote included, into a buffer of the
 * value's length or, with NULL, to nowhere.  Returns what is wrong with it, or
 * NULL.
 */
static const char *
read_string(Cursor *c, StringInfo into)
{
	c->at++;
	while (c->at < c->end)
	{
		char		byte = *c->at++;

		if (byte == '"')
			return NULL;
		if (byte == '\\')
		{
			if (c->at == c->end)
				return "The quoted string ends within an escape.";
			byte = *c->at++;
			if (byte != '"' && byte != '\\')
				return "A backslash in the quoted string is followed by neither \" nor \\.";
		}
		else if (byte < 0x20 || byte > 0x7E)
			return "The quoted string contains a character other than visible ASCII and space.";
		if (into != NULL)
			appendStringInfoChar(into, byte);
	}
	return "The quoted string has no closing quote.";
}

/*
 * Goes past a number: 15 digits, or 12 with up to 3 more after a point.
 */
static bool
skip_number(Cursor *c)
{
	int			whole;
	int			fraction;

	accept(c, '-');
	whole = skip_digits(c);
	if (whole == 0 || whole > MAX_INTEGER_DIGITS)
		return false;
	if (!accept(c, '.'))
		return true;
	fraction = skip_digits(c);
	return whole <= MAX_DECIMAL_DIGITS &&
		fraction > 0 && fraction <= MAX_FRACTION_DIGITS;
}

/*
 * Goes past a token.
 */
static bool
skip_token(Cursor *c)
{
	c->at++;
	while (c->at < c->end &&
		   (is_alpha(*c->at) || is_digit(*c->at) ||
			strchr("!#$%&'*+-.^_`|~:/", *c->at) != NULL))
		c->at++;
	return true;
}

/*
 * Goes past a byte sequence: base64 between colons.  Padding may be missing.
 */
static bool
skip_bytes(Cursor *c)
{
	int			length = 0;
	int			padding = 0;

	c->at++;
	while (c->at < c->end &&
		   (is_alpha(*c->at) || is_digit(*c->at) || *c->at == '+' || *c->at == '/'))
	{
		c->at++;
		length++;
	}
	while (padding < 2 && accept(c, '='))
		padding++;
	return accept(c, ':') && length % 4 != 1;
}

/*
 * Goes past the value of a parameter.
 */
static bool
skip_bare_item(Cursor *c)
{
	if (c->at == c->end)
		return false;
	if (*c->at == '"')
		return read_string(c, NULL) == NULL;
	if (*c->at == '-' || is_digit(*c->at))
		return skip_number(c);
	if (*c->at == '*' || is_alpha(*c->at))
		return skip_token(c);
	if (*c->at == ':')
		return skip_bytes(c);
	return accept(c, '?') && (accept(c, '0') || accept(c, '1'));
}

/*
 * Goes past the parameters after a string (RFC 8941, 3.1.2).  They say nothing
 * about the key, but what follows the string must be parameters and nothing
 * else: two header lines joined by a comma are not.  Returns what is wrong, or
 * NULL.
 */
static const char *
skip_parameters(Cursor *c)
{
	while (accept(c, ';'))
	{
		while (accept(c, ' '))
			;
		if (c->at == c->end || !(is_lower(*c->at) || *c->at == '*'))
			return "A parameter after the quoted string has no valid name.";
		while (c->at < c->end &&
			   (is_lower(*c->at) || is_digit(*c->at) || strchr("_-.*", *c->at) != NULL))
			c->at++;
		if (accept(c, '=') && !skip_bare_item(c))
			return "A parameter after the quoted string has no valid value.";
	}
	if (c->at < c->end)
		return "Something other than a parameter follows the quoted string.";
	return NULL;
}

/*
 * Reads a bare key, as most clients send it.  Returns what is wrong with it, or
 * NULL.
 */
static const char *
read_bare(Cursor *c, StringInfo into)
{
	for (const char *p = c->at; p < c->end; p++)
	{
		if (*p < 0x21 || *p > 0x7E)
			return "A key without quotes contains a character other than visible ASCII.";
		if (*p == '"' || *p == '\\' || *p == ',' || *p == ';')
			return "A key without quotes contains one of \" \\ , ;";
	}
	appendBinaryStringInfo(into, c->at, c->end - c->at);
	return NULL;
}

/*
 * Takes off the blanks that HTTP allows around a header's value.
 */
static void
strip_blanks(Cursor *c)
{
	while (c->at < c->end && (*c->at == ' ' || *c->at == '\t'))
		c->at++;
	while (c->at < c->end && (c->end[-1] == ' ' || c->end[-1] == '\t'))
		c->end--;
}

/*
 * idem_parse_key(header text)
 *		The key that the value of an Idempotency-Key header names.
 *
 * Raises ID400 for anything that is not a valid value, and for NULL: a missing
 * header is the caller's to decide before it gets here.
 */
PG_FUNCTION_INFO_V1(idem_parse_key);
Datum
idem_parse_key(PG_FUNCTION_ARGS)
{
	text	   *header;
	Cursor		c;
	StringInfoData key;
	const char *wrong;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_INVALID_KEY),
				 errmsg("the Idempotency-Key header is null"),
				 errhint("Answer the request with status 400, or treat it as one without a key, before asking for the key.")));

	header = PG_GETARG_TEXT_PP(0);
	c.at = VARDATA_ANY(header);
	c.end = c.at + VARSIZE_ANY_EXHDR(header);
	strip_blanks(&c);
	initStringInfo(&key);

	if (c.at == c.end)
		wrong = "It is empty.";
	else if (*c.at != '"')
		wrong = read_bare(&c, &key);
	else
	{
		wrong = read_string(&c, &key);
		if (wrong == NULL)
			wrong = skip_parameters(&c);
	}

	if (wrong == NULL && key.len == 0)
		wrong = "The key is empty.";
	if (wrong == NULL && key.len > MAX_HEADER_KEY)
		wrong = "The key is longer than 255 characters.";
	if (wrong != NULL)
		invalid_header(header, wrong);

	PG_RETURN_TEXT_P(cstring_to_text_with_len(key.data, key.len));
}

/*
 * Adds a text to the digest: its length in UTF-8 as a big-endian uint32, then
 * its bytes.  The lengths keep "a", "b:c" and "a:b", "c" apart.
 */
static void
digest_text(text *value)
{
	const char *utf8 = pg_server_to_any(VARDATA_ANY(value),
										VARSIZE_ANY_EXHDR(value), PG_UTF8);
	uint32		length = utf8 == VARDATA_ANY(value) ?
		VARSIZE_ANY_EXHDR(value) : strlen(utf8);
	uint32		prefix = pg_hton32(length);

	IdemDigestAdd(&prefix, sizeof(prefix));
	IdemDigestAdd(utf8, length);
}

/*
 * idem_provider_key(client text, key text, step text)
 *		The key to send to the next system down the line: a version 8 UUID that
 *		is the same for the same arguments on every attempt, server and version.
 *
 * step tells several calls for one key apart; NULL is no step, as '' is.
 */
PG_FUNCTION_INFO_V1(idem_provider_key);
Datum
idem_provider_key(PG_FUNCTION_ARGS)
{
	text	   *client = PG_ARGISNULL(0) ? NULL : PG_GETARG_TEXT_PP(0);
	text	   *key = PG_ARGISNULL(1) ? NULL : PG_GETARG_TEXT_PP(1);
	text	   *step = PG_ARGISNULL(2) ? cstring_to_text("") : PG_GETARG_TEXT_PP(2);
	uint8		digest[IDEM_SHA256_BYTES];
	pg_uuid_t  *uuid;

	IdemCheckClient(client);
	IdemCheckKey(key);

	IdemDigestBegin();
	digest_text(client);
	digest_text(key);
	digest_text(step);
	IdemDigestEnd(digest);

	uuid = palloc(sizeof(pg_uuid_t));
	memcpy(uuid->data, digest, UUID_LEN);
	uuid->data[6] = (uuid->data[6] & 0x0F) | 0x80;	/* version 8 (RFC 9562) */
	uuid->data[8] = (uuid->data[8] & 0x3F) | 0x80;	/* variant 10 */
	PG_RETURN_UUID_P(uuid);
}
