/*-------------------------------------------------------------------------
 *
 * form.c
 *	  Is a text canonical?
 *
 * A reader of canonical JSON and of nothing else, written from RFC 8785 and from
 * ECMA-262's Number::toString, without a look at the writer that it checks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"

#include "form.h"

/* The text that is left; it ends with NUL, which no canonical text contains. */
typedef const char *Cursor;

static bool read_value(Cursor *c);

static bool
skip(Cursor *c, const char *expected)
{
	size_t		length = strlen(expected);

	if (strncmp(*c, expected, length) != 0)
		return false;
	*c += length;
	return true;
}

/*
 * Reads a string into UTF-16 code units.
 */
static bool
read_string(Cursor *c, StringInfo units)
{
	if (!skip(c, "\""))
		return false;
	while (**c != '"')
	{
		unsigned char byte = **c;
		pg_wchar	character;
		uint16		unit;

		if (byte < 0x20)
			return false;
		if (byte == '\\')
		{
			static const char escapes[] = "\"\\bfnrt";
			static const char meant[] = "\"\\\b\f\n\r\t";
			const char *escape;

			++*c;
			escape = **c == '\0' ? NULL : strchr(escapes, **c);
			if (escape != NULL)
			{
				character = meant[escape - escapes];
				++*c;
			}
			else
			{
				static const char hex[] = "0123456789abcdef";

				if (!skip(c, "u00") || (**c != '0' && **c != '1') ||
					(*c)[1] == '\0' || strchr(hex, (*c)[1]) == NULL)
					return false;
				character = (**c - '0') * 16 + (strchr(hex, (*c)[1]) - hex);
				if (character == 0 || strchr(meant, character) != NULL)
					return false;
				*c += 2;
			}
		}
		else
		{
			character = utf8_to_unicode((const unsigned char *) *c);
			*c += pg_encoding_mblen(PG_UTF8, *c);
		}

		if (character > 0xFFFF)
		{
			unit = 0xD800 + ((character - 0x10000) >> 10);
			appendBinaryStringInfo(units, (char *) &unit, sizeof(unit));
			character = 0xDC00 + ((character - 0x10000) & 0x3FF);
		}
		unit = character;
		appendBinaryStringInfo(units, (char *) &unit, sizeof(unit));
	}
	return skip(c, "\"");
}

/*
 * Does one string of code units come before another?
 */
static bool
comes_before(const StringInfoData *a, const StringInfoData *b)
{
	const uint16 *x = (const uint16 *) a->data;
	const uint16 *y = (const uint16 *) b->data;
	int			length = Min(a->len, b->len) / sizeof(uint16);

	for (int i = 0; i < length; i++)
	{
		if (x[i] != y[i])
			return x[i] < y[i];
	}
	return a->len < b->len;
}

/*
 * How many characters of a set come next?
 */
static int
count_of(const char *s, const char *set)
{
	return strspn(s, set);
}

#define DIGITS "0123456789"

/*
 * Reads a number: k digits s, of which n stand before the point, laid out as
 * 6.1.6.1.20 of ECMA-262 says.
 */
static bool
read_number(Cursor *c)
{
	int			whole;
	int			fraction = 0;
	bool		plain = true;

	if (skip(c, "-") && **c == '0' && (*c)[1] != '.')
		return false;			/* -0, and -0e.. */
	whole = count_of(*c, DIGITS);
	if (whole == 0 || (whole > 1 && **c == '0'))
		return false;
	if ((*c)[whole] == '.')
	{
		fraction = count_of(*c + whole + 1, DIGITS);
		if (fraction == 0 || (*c)[whole + fraction] == '0')
			return false;		/* no digits, or zeros at their end */
	}
	if ((*c)[whole + (fraction > 0 ? fraction + 1 : 0)] == 'e')
		plain = false;

	if (plain && **c == '0' && fraction > 0)
	{
		/* -6 < n <= 0: "0." and at most five zeros */
		if (count_of(*c + 2, "0") > 5)
			return false;
		*c += whole + 1 + fraction;
	}
	else if (plain)
	{
		/* 0 < n <= 21 */
		if (whole > 21)
			return false;
		*c += whole + (fraction > 0 ? fraction + 1 : 0);
	}
	else
	{
		bool		positive;
		int			digits;
		int			exponent;

		/* One digit before the point, which is not zero */
		if (whole != 1 || **c == '0')
			return false;
		*c += whole + (fraction > 0 ? fraction + 1 : 0) + 1;
		positive = **c == '+';
		if (!positive && **c != '-')
			return false;
		++*c;
		digits = count_of(*c, DIGITS);
		if (digits == 0 || digits > 6 || **c == '0')
			return false;
		exponent = atoi(*c);
		/* n = exponent + 1 > 21, or n = 1 - exponent <= -6 */
		if (positive ? exponent + 1 <= 21 : 1 - exponent > -6)
			return false;
		*c += digits;
	}
	return true;
}

static bool
read_array(Cursor *c)
{
	if (skip(c, "]"))
		return true;
	do
	{
		if (!read_value(c))
			return false;
	} while (skip(c, ","));
	return skip(c, "]");
}

static bool
read_object(Cursor *c)
{
	StringInfoData last;
	bool		first = true;

	if (skip(c, "}"))
		return true;
	initStringInfo(&last);
	do
	{
		StringInfoData key;

		initStringInfo(&key);
		if (!read_string(c, &key) || !skip(c, ":") ||
			!(first || comes_before(&last, &key)) || !read_value(c))
			return false;
		last = key;
		first = false;
	} while (skip(c, ","));
	return skip(c, "}");
}

static bool
read_value(Cursor *c)
{
	StringInfoData ignored;

	check_stack_depth();
	switch (**c)
	{
		case '"':
			initStringInfo(&ignored);
			return read_string(c, &ignored);
		case '[':
			++*c;
			return read_array(c);
		case '{':
			++*c;
			return read_object(c);
		case 't':
			return skip(c, "true");
		case 'f':
			return skip(c, "false");
		case 'n':
			return skip(c, "null");
		default:
			return read_number(c);
	}
}

/*
 * Is a text, which ends with NUL, canonical?
 */
bool
is_canonical(const char *text, size_t length)
{
	Cursor		c = text;

	return pg_verify_mbstr(PG_UTF8, text, length, true) &&
		read_value(&c) && c == text + length;
}
