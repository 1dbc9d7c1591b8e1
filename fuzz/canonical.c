/*-------------------------------------------------------------------------
 *
 * canonical.c
 *	  Target: canonical text, fingerprint and selection.
 *
 * An input is an encoding, a kind, and then, by the kind,
 *
 * - text: JSON, and after it paths, each with + (include) or - (exclude) before
 *	 it; all end with NUL;
 * - a program that builds a document of any strings and numbers;
 * - a program that builds a document no two nodes of which are equal, and paths.
 *	 There the value tells which node was selected, so what is left is known from
 *	 what jsonb_path_query_array finds.
 *
 * What must hold of a text: it is canonical as it stands (form.c), reads back as
 * the document and is the text of that, too; and the fingerprint is its digest.
 * There is one canonical text for a value, so no other text would pass.
 *
 *-------------------------------------------------------------------------
 */
#include "fuzz.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"

#include "compat.h"
#include "form.h"

extern Datum idem_canonical_fingerprint(PG_FUNCTION_ARGS);
extern Datum idem_canonical_json(PG_FUNCTION_ARGS);

/* What a program may build */
#define MAX_BUILT_DEPTH		40
#define MAX_BUILT_STRING	40000	/* several pieces of a conversion */
#define MAX_UNIQUE_DEPTH	5
#define MAX_PATHS			3
#define MAX_STEPS			4

/* The paths of an input; NULL where there is no list. */
typedef struct Lists
{
	ArrayType  *include;
	ArrayType  *exclude;
} Lists;

/* What jsonb_path_query finds for a list. */
typedef struct Nodes
{
	int			count;
	Jsonb	  **nodes;
} Nodes;

/*
 * Reads JSON; NULL where it is refused.
 */
static Jsonb *
read_json(const char *json, int *sqlstate)
{
	NullableDatum arg = {CStringGetDatum(json), false};
	Datum		doc = call(jsonb_in, 1, &arg, sqlstate);

	return *sqlstate == 0 ? DatumGetJsonbP(doc) : NULL;
}

/*
 * Calls one of the functions under test.
 */
static Datum
canonical(PGFunction function, Jsonb *doc, const Lists *lists, int *sqlstate)
{
	NullableDatum args[3] = {
		{PointerGetDatum(doc), false},
		{PointerGetDatum(lists->include), lists->include == NULL},
		{PointerGetDatum(lists->exclude), lists->exclude == NULL}
	};

	return call(function, 3, args, sqlstate);
}

static bool
equal_docs(Jsonb *a, Jsonb *b)
{
	return DatumGetBool(DirectFunctionCall2(jsonb_eq, JsonbPGetDatum(a), JsonbPGetDatum(b)));
}

/*
 * The errors that any document may lead to: a stack that is not deep enough, and
 * strings that are not UTF-8 or have no counterpart in it.
 */
static bool
is_refusal(int sqlstate)
{
	return sqlstate == ERRCODE_STATEMENT_TOO_COMPLEX ||
		(GetDatabaseEncoding() != PG_UTF8 &&
		 (sqlstate == ERRCODE_CHARACTER_NOT_IN_REPERTOIRE ||
		  sqlstate == ERRCODE_UNTRANSLATABLE_CHARACTER));
}

/*
 * Can strings come back changed?  EUC_JP has two codes for some characters.
 */
static bool
is_ambiguous(void)
{
	return GetDatabaseEncoding() == PG_EUC_JP;
}

/*
 * Calls both functions, and checks that they agree and that the text is
 * canonical.  Returns it as a document; NULL where it is refused, with the
 * SQLSTATE.
 */
static Jsonb *
check_form(Jsonb *doc, const Lists *lists, text **result, int *sqlstate)
{
	Datum		fingerprint = canonical(idem_canonical_fingerprint, doc, lists, sqlstate);
	int			textstate;
	Datum		written = canonical(idem_canonical_json, doc, lists, &textstate);
	char	   *utf8;
	Datum		digest;

	MUST(textstate == *sqlstate);
	if (textstate != 0)
		return NULL;

	*result = DatumGetTextPP(written);
	utf8 = TextDatumGetCString(written);
	utf8 = pg_server_to_any(utf8, strlen(utf8), PG_UTF8);
	MUST(is_canonical(utf8, strlen(utf8)));
	digest = sha256_of(utf8, strlen(utf8));
	MUST(DatumGetBool(DirectFunctionCall2(byteaeq, digest, fingerprint)));

	doc = read_json(TextDatumGetCString(written), &textstate);
	MUST(doc != NULL || textstate == ERRCODE_STATEMENT_TOO_COMPLEX);
	return doc;
}

/*
 * Checks a whole document.
 */
static void
check_document(Jsonb *doc)
{
	Lists		none = {NULL, NULL};
	Lists		nothing = {NULL, NULL};
	text	   *first;
	text	   *second;
	int			sqlstate;
	Jsonb	   *back = check_form(doc, &none, &first, &sqlstate);

	if (back == NULL)
	{
		MUST(sqlstate == 0 || is_refusal(sqlstate));
		return;
	}
	MUST(is_ambiguous() || equal_docs(doc, back));

	/* A document is the same whichever way it was written */
	MUST(check_form(back, &none, &second, &sqlstate) != NULL);
	MUST(same_bytes(VARDATA_ANY(first), VARSIZE_ANY_EXHDR(first),
					VARDATA_ANY(second), VARSIZE_ANY_EXHDR(second)));

	/* ... and an exclude list that takes nothing away */
	nothing.exclude = construct_array((Datum[]) {
		DirectFunctionCall1(jsonpath_in, CStringGetDatum("$.**.\"no such key\""))
	}, 1, JSONPATHOID, -1, false, TYPALIGN_INT);
	if (check_form(doc, &nothing, &second, &sqlstate) != NULL)
		MUST(same_bytes(VARDATA_ANY(first), VARSIZE_ANY_EXHDR(first),
						VARDATA_ANY(second), VARSIZE_ANY_EXHDR(second)));
	else
		MUST(is_refusal(sqlstate));
}

/*
 * A list out of paths that were read.
 */
static ArrayType *
path_list(Datum *paths, int count)
{
	return construct_array(paths, count, JSONPATHOID, -1, false, TYPALIGN_INT);
}

/*
 * The paths that follow a JSON text.
 */
static bool
take_paths(Input *input, Lists *lists)
{
	Datum		paths[2][MAX_PATHS];
	int			counts[2] = {0, 0};
	char	   *line;

	while ((line = take_line(input)) != NULL)
	{
		int			side = line[0] == '+' ? 0 : 1;
		NullableDatum arg = {CStringGetDatum(line + 1), false};
		Datum		path;
		int			sqlstate;

		if (line[0] == '\0' || counts[side] == MAX_PATHS ||
			!pg_verifymbstr(line, strlen(line), true))
			return false;
		path = call(jsonpath_in, 1, &arg, &sqlstate);
		if (sqlstate != 0)
			return false;
		paths[side][counts[side]++] = path;
	}
	lists->include = counts[0] == 0 ? NULL : path_list(paths[0], counts[0]);
	lists->exclude = counts[1] == 0 ? NULL : path_list(paths[1], counts[1]);
	return true;
}

/*
 * JSON text and paths.
 */
static void
check_text(Input *input)
{
	char	   *json = take_line(input);
	Lists		lists = {NULL, NULL};
	text	   *text;
	Jsonb	   *doc;
	int			sqlstate;

	if (json == NULL || !pg_verifymbstr(json, strlen(json), true))
		return;
	doc = read_json(json, &sqlstate);
	if (doc == NULL)
		return;
	check_document(doc);

	if (!take_paths(input, &lists) || (lists.include == NULL && lists.exclude == NULL))
		return;
	if (check_form(doc, &lists, &text, &sqlstate) == NULL)
		MUST(sqlstate == 0 || is_refusal(sqlstate) ||
			 sqlstate == ERRCODE_FEATURE_NOT_SUPPORTED ||
			 sqlstate == ERRCODE_INVALID_PARAMETER_VALUE);
}

/*
 * A string of characters that the encoding has.
 */
static void
build_string(Input *input, JsonbValue *value)
{
	StringInfoData string;
	int			count = take_byte(input);

	if (count > 0xF0)
		count = count << 6;		/* beyond the buffers of the writer */
	else
		count &= 0x0F;

	initStringInfo(&string);
	while (count-- > 0 && input->at < input->end)
	{
		int			byte = take_byte(input);
		unsigned char utf8[5] = {0};
		pg_wchar	c = byte;

		if (GetDatabaseEncoding() == PG_UTF8 && byte >= 0xC0)
		{
			c = (byte & 0x1F) << 16 | take_byte(input) << 8 | take_byte(input);
			if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF) || c == 0)
				c = 'x';
			unicode_to_utf8(c, utf8);
			appendStringInfoString(&string, (char *) utf8);
		}
		else if (GetDatabaseEncoding() == PG_UTF8 && byte >= 0x80)
			appendStringInfoSpaces(&string, byte & 0x7F);	/* a run */
		else if (byte == 1)
		{
			/* Once more what there is */
			if (string.len <= MAX_BUILT_STRING / 2)
				appendBinaryStringInfo(&string, pnstrdup(string.data, string.len), string.len);
		}
		else
			appendStringInfoChar(&string, byte == 0 ? 'x' : byte);
	}
	if (!pg_verifymbstr(string.data, string.len, true))
		string.len = 0;

	value->type = jbvString;
	value->val.string.val = string.data;
	value->val.string.len = string.len;
}

/*
 * A number, by its digits and its exponent or by the bits of a double.
 */
static void
build_number(Input *input, JsonbValue *value)
{
	StringInfoData number;
	int			count = take_byte(input);
	int			sqlstate;
	Datum		result;
	NullableDatum args[3] = {{0, false}, {ObjectIdGetDatum(InvalidOid), false}, {Int32GetDatum(-1), false}};

	initStringInfo(&number);
	if (count & 0x80)
	{
		uint64		bits = 0;
		double		d;

		for (int i = 0; i < 8; i++)
			bits = bits << 8 | take_byte(input);
		memcpy(&d, &bits, sizeof(d));
		appendStringInfo(&number, "%.17g", isfinite(d) ? d : 0.0);
	}
	else
	{
		if (count & 0x40)
			appendStringInfoChar(&number, '-');
		appendStringInfoChar(&number, '0');
		for (int i = 0; i < (count & 0x3F); i++)
		{
			int			byte = take_byte(input);

			if (byte >= 0xF0)
				for (int j = 0; j < (byte & 0x0F) * 8; j++)
					appendStringInfoChar(&number, '0');
			else if (byte < 0xF0 && byte >= 0xE8 && strchr(number.data, '.') == NULL)
				appendStringInfoChar(&number, '.');
			else
				appendStringInfo(&number, "%d", byte);
		}
		appendStringInfo(&number, "e%d", (int16) (take_byte(input) << 8 | take_byte(input)) / (take_byte(input) + 1));
	}

	args[0].value = CStringGetDatum(number.data);
	result = call(numeric_in, 3, args, &sqlstate);
	if (sqlstate == 0)
	{
		value->type = jbvNumeric;
		value->val.numeric = DatumGetNumeric(result);
	}
	else
	{
		MUST(sqlstate == ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE ||
			 sqlstate == ERRCODE_INVALID_TEXT_REPRESENTATION);
		value->type = jbvNull;
	}
}

/*
 * Builds any value.
 */
static JsonbValue *
build_value(Input *input, JsonbParseState **state, JsonbIteratorToken where, int depth)
{
	JsonbValue	value;
	int			kind = take_byte(input);
	int			count = kind >> 4;
	bool		is_object = (kind & 0x0F) >= 11;

	if (depth > MAX_BUILT_DEPTH || (kind & 0x0F) < 8)
	{
		switch (kind & 0x07)
		{
			case 0:
				value.type = jbvNull;
				break;
			case 1:
			case 2:
				value.type = jbvBool;
				value.val.boolean = (kind & 0x01) != 0;
				break;
			case 3:
			case 4:
				build_string(input, &value);
				break;
			default:
				build_number(input, &value);
				break;
		}
		return pushJsonbValue(state, where, &value);
	}

	if (count == 0x0F)
		count = take_byte(input);
	pushJsonbValue(state, is_object ? WJB_BEGIN_OBJECT : WJB_BEGIN_ARRAY, NULL);
	while (count-- > 0 && input->at < input->end)
	{
		if (is_object)
		{
			build_string(input, &value);
			pushJsonbValue(state, WJB_KEY, &value);
		}
		build_value(input, state, is_object ? WJB_VALUE : WJB_ELEM, depth + 1);
	}
	return pushJsonbValue(state, is_object ? WJB_END_OBJECT : WJB_END_ARRAY, NULL);
}

/*
 * A document of any strings and numbers.
 */
static void
check_built(Input *input)
{
	JsonbParseState *state = NULL;
	JsonbValue *value;

	/* A scalar can only be an element; it is looked at within its array then */
	pushJsonbValue(&state, WJB_BEGIN_ARRAY, NULL);
	build_value(input, &state, WJB_ELEM, 1);
	value = pushJsonbValue(&state, WJB_END_ARRAY, NULL);
	check_document(JsonbValueToJsonb(value));
	if (value->type == jbvArray && value->val.array.nElems == 1)
		check_document(JsonbValueToJsonb(&value->val.array.elems[0]));
}

/*
 * Writes a value that is equal to no other in the document: the scalars are
 * counted, and there is one in every container.
 */
static void
build_unique(Input *input, StringInfo json, int *counter, int depth)
{
	static const char *const keys[] = {"a", "b", "c d", ""};
	int			kind = take_byte(input);
	int			count = 1 + (kind >> 2) % 3;

	if (depth >= MAX_UNIQUE_DEPTH || kind % 4 == 0)
	{
		appendStringInfo(json, "%d", ++*counter);
		return;
	}
	appendStringInfoChar(json, kind % 4 == 1 ? '{' : '[');
	while (count-- > 0)
	{
		if (kind % 4 == 1)
			appendStringInfo(json, "\"%s\":", keys[take_byte(input) % lengthof(keys)]);
		build_unique(input, json, counter, depth + 1);
		if (count > 0)
			appendStringInfoChar(json, ',');
	}
	appendStringInfoChar(json, kind % 4 == 1 ? '}' : ']');
}

/*
 * A list of 1 to 3 paths of the restricted forms; NULL for none.
 */
static ArrayType *
build_paths(Input *input)
{
	static const char *const steps[] = {
		".a", ".b", ".\"c d\"", ".\"\"", ".*", "[*]", "[0]", "[1]", "[2]", ".**"
	};
	int			count = take_byte(input) % (MAX_PATHS + 1);
	Datum		paths[MAX_PATHS];

	if (count == 0)
		return NULL;
	for (int i = 0; i < count; i++)
	{
		StringInfoData path;

		initStringInfo(&path);
		appendStringInfoChar(&path, '$');
		for (int n = take_byte(input) % (MAX_STEPS + 1); n > 0; n--)
			appendStringInfoString(&path, steps[take_byte(input) % lengthof(steps)]);
		paths[i] = DirectFunctionCall1(jsonpath_in, CStringGetDatum(path.data));
	}
	return path_list(paths, count);
}

/*
 * A value of any kind as a document.
 */
static Jsonb *
as_document(JsonbValue *value)
{
	return JsonbValueToJsonb(value);
}

/*
 * The nodes that a list selects, by the server.
 */
static Nodes
selected_nodes(Jsonb *doc, ArrayType *list)
{
	Nodes		result = {0, palloc(sizeof(Jsonb *))};
	Datum	   *paths;
	int			npaths;

	if (list == NULL)
		return result;
	deconstruct_array(list, JSONPATHOID, -1, false, TYPALIGN_INT, &paths, NULL, &npaths);
	for (int i = 0; i < npaths; i++)
	{
		Jsonb	   *found = DatumGetJsonbP(DirectFunctionCall4(jsonb_path_query_array,
															   JsonbPGetDatum(doc), paths[i],
															   DirectFunctionCall1(jsonb_in, CStringGetDatum("{}")),
															   BoolGetDatum(false)));
		uint32		count = JB_ROOT_COUNT(found);

		result.nodes = repalloc(result.nodes, (result.count + count + 1) * sizeof(Jsonb *));
		for (uint32 j = 0; j < count; j++)
			result.nodes[result.count++] = as_document(getIthJsonbValueFromContainer(&found->root, j));
	}
	return result;
}

static bool
is_member(const Nodes *set, Jsonb *node)
{
	for (int i = 0; i < set->count; i++)
	{
		if (equal_docs(set->nodes[i], node))
			return true;
	}
	return false;
}

/*
 * Writes what the lists leave of a node, by definition: the nodes included, what
 * is in them and their ancestors, without those excluded.  Returns false where
 * that is nothing.
 */
static bool
leave(Jsonb *node, bool kept, const Nodes *included, const Nodes *excluded, bool *hit, StringInfo json)
{
	JsonbIterator *it = JsonbIteratorInit(&node->root);
	JsonbValue	value;
	JsonbIteratorToken token;
	bool		is_object = JB_ROOT_IS_OBJECT(node);
	bool		own = is_member(included, node);
	bool		dropped = is_member(excluded, node);
	bool		below = false;
	bool		first = true;
	StringInfoData inner;

	kept = kept || own;
	initStringInfo(&inner);
	if (JB_ROOT_IS_SCALAR(node))
		appendStringInfoString(&inner, JsonbToCString(NULL, &node->root, 0));
	else
	{
		appendStringInfoChar(&inner, is_object ? '{' : '[');
		(void) JsonbIteratorNext(&it, &value, false);
		while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
		{
			StringInfoData child;
			StringInfoData name;
			bool		child_hit = false;
			bool		left;

			initStringInfo(&child);
			initStringInfo(&name);
			if (token == WJB_KEY)
			{
				appendStringInfo(&name, "\"%.*s\":", value.val.string.len, value.val.string.val);
				token = JsonbIteratorNext(&it, &value, true);
			}
			if (token != WJB_VALUE && token != WJB_ELEM)
				continue;
			left = leave(as_document(&value), kept, included, excluded, &child_hit, &child);
			below = below || child_hit;
			if (!left)
				continue;
			appendStringInfo(&inner, "%s%s%s", first ? "" : ",", name.data, child.data);
			first = false;
		}
		appendStringInfoChar(&inner, is_object ? '}' : ']');
	}

	*hit = own || below;
	if (dropped || !(kept || *hit))
		return false;
	appendStringInfoString(json, inner.data);
	return true;
}

/*
 * Selection from a document of unique nodes.
 */
static void
check_selection(Input *input)
{
	StringInfoData json;
	StringInfoData expected;
	int			counter = 0;
	Lists		lists;
	Jsonb	   *doc;
	Jsonb	   *got;
	text	   *text;
	Nodes		included;
	Nodes		excluded;
	int			sqlstate;
	bool		left;
	bool		hit = false;

	initStringInfo(&json);
	initStringInfo(&expected);
	build_unique(input, &json, &counter, 0);
	doc = read_json(json.data, &sqlstate);
	MUST(doc != NULL);
	lists.include = build_paths(input);
	lists.exclude = build_paths(input);

	included = selected_nodes(doc, lists.include);
	excluded = selected_nodes(doc, lists.exclude);
	left = leave(doc, lists.include == NULL, &included, &excluded, &hit, &expected);
	got = check_form(doc, &lists, &text, &sqlstate);
	if (got == NULL)
	{
		MUST(sqlstate == ERRCODE_INVALID_PARAMETER_VALUE);
		MUST(!left);
	}
	else
	{
		MUST(left);
		MUST(equal_docs(got, read_json(expected.data, &sqlstate)));
	}
}

void
fuzz_canonical(Input *input)
{
	take_encoding(input);
	switch (take_byte(input) % 4)
	{
		case 0:
		case 1:
			check_text(input);
			break;
		case 2:
			check_built(input);
			break;
		default:
			check_selection(input);
			break;
	}
}
