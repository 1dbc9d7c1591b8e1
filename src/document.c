/*-------------------------------------------------------------------------
 *
 * document.c
 *	  How much room a JSON document takes.
 *
 * What is kept with a key must come along with a dump, and a dump has it as
 * text.  A jsonb of a few bytes can have a text of gigabytes: 1e131071 takes 8
 * bytes in the one and 131,072 in the other.  And one that was put together
 * level by level can be nested too deep for its text to be read again.  So a
 * document is measured by its text, which is not built for that.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "document.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/numeric.h"

/* numeric_send's form: four 16-bit integers, then groups of four digits */
typedef struct WireNumeric
{
	uint16		ngroups;
	uint16		weight;			/* signed: of the first group */
	uint16		sign;
	uint16		scale;			/* digits after the point */
	uint16		first_group;	/* only if there are any */
} WireNumeric;

/* Digits of a group without its leading zeros */
static int
GroupDigits(uint16 group)
{
	return group >= 1000 ? 4 : group >= 100 ? 3 : group >= 10 ? 2 : 1;
}

/* Bytes of a number's text: sign, digits before the point, point, and after it */
static int64
NumberBytes(Numeric number)
{
	bytea	   *sent = DatumGetByteaPP(DirectFunctionCall1(numeric_send,
														   NumericGetDatum(number)));
	WireNumeric wire = {0};
	int			scale;
	int64		bytes = 1;

	memcpy(&wire, VARDATA_ANY(sent), Min(sizeof(wire), VARSIZE_ANY_EXHDR(sent)));
	scale = pg_ntoh16(wire.scale);
	if (wire.ngroups != 0 && (int16) pg_ntoh16(wire.weight) >= 0)
		bytes = GroupDigits(pg_ntoh16(wire.first_group)) +
			4 * (int16) pg_ntoh16(wire.weight);
	if (wire.sign != 0)
		bytes++;
	if (scale > 0)
		bytes += 1 + scale;
	pfree(sent);
	return bytes;
}

/* Bytes of a string's text: the quotes, and what has to be escaped */
static int64
StringBytes(const char *string, int length)
{
	int64		bytes = 2 + (int64) length;
	int			i;

	for (i = 0; i < length; i++)
	{
		unsigned char c = string[i];

		if (c == '"' || c == '\\' || c == '\b' || c == '\f' || c == '\n' ||
			c == '\r' || c == '\t')
			bytes++;
		else if (c < ' ')
			bytes += strlen("\\u0000") - 1;
	}
	return bytes;
}

static int64
ScalarBytes(const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvNull:
			return strlen("null");
		case jbvBool:
			return value->val.boolean ? strlen("true") : strlen("false");
		case jbvNumeric:
			return NumberBytes(value->val.numeric);
		case jbvString:
			return StringBytes(value->val.string.val, value->val.string.len);
		default:
			elog(ERROR, "unexpected type of a jsonb scalar: %d", (int) value->type);
	}
}

/* The brackets of a container, and what stands between its members */
static int64
ContainerBytes(int nmembers)
{
	return 2 + (nmembers > 1 ? 2 * ((int64) nmembers - 1) : 0);
}

/* Bytes of the document's text, and how deep it is nested: 0 for a scalar */
int64
IdemDocumentBytes(Jsonb *doc, int *depth)
{
	JsonbIterator *iterator = JsonbIteratorInit(&doc->root);
	JsonbIteratorToken token;
	JsonbValue	value;
	int64		bytes = 0;
	int			level = 0;

	*depth = 0;
	while ((token = JsonbIteratorNext(&iterator, &value, false)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		switch (token)
		{
			case WJB_BEGIN_ARRAY:
				if (value.val.array.rawScalar)
					break;
				bytes += ContainerBytes(value.val.array.nElems);
				level++;
				*depth = Max(*depth, level);
				break;
			case WJB_BEGIN_OBJECT:
				bytes += ContainerBytes(value.val.object.nPairs);
				level++;
				*depth = Max(*depth, level);
				break;
			case WJB_END_ARRAY:
			case WJB_END_OBJECT:
				level--;
				break;
			case WJB_KEY:
				bytes += ScalarBytes(&value) + strlen(": ");
				break;
			default:
				bytes += ScalarBytes(&value);
				break;
		}
	}
	return bytes;
}
