/*-------------------------------------------------------------------------
 *
 * selection.c
 *	  Which parts of a document a set of jsonpaths selects.
 *
 * Only paths that name places are taken: $ .key ."key" .* [*] [n] and .**, in
 * lax mode.  Whether a node is selected by such a path depends on nothing but
 * the way from the root to the node.  So all paths together are one
 * nondeterministic automaton, whose states are the steps of the paths, and a
 * walk down the document carries the set of states along: once over each node,
 * whatever the number of paths, where jsonb_path_query with two .** in a path
 * visits a node once for every way to get there.
 *
 * The nodes are those of jsonb_path_query in lax mode.  There a member accessor
 * that meets an array applies to the array's elements instead, but not to
 * elements of elements; [*] and [0] on anything but an array are that thing
 * itself; and .** is the node and everything below it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/builtins.h"
#include "utils/jsonpath.h"

#include "selection.h"

/* A path in an error message is cut after this many bytes */
#define PATH_IN_MESSAGE		64

/* One step of a path, as its states are numbered. */
typedef struct Step
{
	enum
	{
		STEP_KEY,				/* .key */
		STEP_ANY_KEY,			/* .* */
		STEP_ELEMENT,			/* [n] */
		STEP_ANY_ELEMENT,		/* [*] */
		STEP_ANYWHERE,			/* .** */
		STEP_END				/* the path has been followed to its end */
	}			kind;
	const char *key;			/* of .key, in the server's encoding */
	int			keylen;
	uint32		index;			/* of [n] */
} Step;

/*
 * A step s has two states: at a node with state 2s the step is to be taken from
 * that node; state 2s + 1 is the same for an element that stands in for its
 * array, which is not unwrapped once more.
 */
#define STATE(step)				(2 * (step))
#define UNWRAPPED_STATE(step)	(2 * (step) + 1)
#define STATE_STEP(state)		((state) / 2)
#define STATE_IS_UNWRAPPED(state) ((state) % 2 == 1)

#define WORD_BITS				64

struct IdemSelection
{
	bool		has_include;	/* there is an include list, if only an empty one */
	Step	   *steps;
	int			nsteps;
	int			maxsteps;
	int			include_steps;	/* the include list's come first */

	/* Sets of states, one word after the other */
	int			nwords;
	uint64	   *include_ends;
	uint64	   *exclude_ends;
	uint64	   *include_open;	/* not at their end */
	uint64	   *exclude_open;

	uint64	   *levels;			/* the walk's sets, one for each depth */
	int			maxdepth;
};

/*
 * Complains about a path that is valid but not one of the restricted forms.
 *
 * The server takes a SQL_ASCII database's bytes for characters, so there a
 * character must not be cut by cutting the path.
 */
static void
unsupported_path(JsonPath *path, const char *why)
{
	char	   *text = DatumGetCString(DirectFunctionCall1(jsonpath_out,
														   PointerGetDatum(path)));
	int			length = strlen(text);
	int			shown = pg_mbcliplen(text, length, PATH_IN_MESSAGE);

	while (GetDatabaseEncoding() == PG_SQL_ASCII && shown < length &&
		   shown > 0 && IS_HIGHBIT_SET(text[shown]))
		shown--;

	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("jsonpath \"%.*s%s\" cannot be used to select parts of a document",
					shown, text, shown < length ? "..." : ""),
			 errdetail("%s", why),
			 errhint("Use lax paths made of $ .key .\"key\" .* [*] [n] and .** only.")));
}

/*
 * Appends a step.
 */
static Step *
add_step(IdemSelection *selection)
{
	if (selection->nsteps == selection->maxsteps)
	{
		selection->maxsteps *= 2;
		selection->steps = repalloc(selection->steps,
									selection->maxsteps * sizeof(Step));
	}
	return &selection->steps[selection->nsteps++];
}

/*
 * The element that [n] names.  Only a whole number as it stands is taken, since
 * jsonpath computes everything else when the path is followed: several
 * subscripts, ranges, "last", expressions.
 */
static uint32
element_index(JsonPath *path, JsonPathItem *item)
{
	JsonPathItem from;
	JsonPathItem to;
	char	   *digits;
	uint64		index = 0;

	if (item->content.array.nelems != 1 ||
		jspGetArraySubscript(item, &from, &to, 0) ||
		from.type != jpiNumeric || jspHasNext(&from))
		unsupported_path(path, "It has a subscript that is not one number.");

	digits = DatumGetCString(DirectFunctionCall1(numeric_out,
												 NumericGetDatum(jspGetNumeric(&from))));
	for (const char *d = digits; *d != '\0'; d++)
	{
		if (*d >= '0' && *d <= '9' && index <= PG_INT32_MAX)
			index = index * 10 + (*d - '0');
		else
			index = PG_UINT64_MAX;
	}
	if (index > PG_INT32_MAX)
		unsupported_path(path, "It has a subscript that is not a whole number from 0 to 2147483647.");
	pfree(digits);
	return (uint32) index;
}

/*
 * Appends the step that one item of a path is.
 */
static void
compile_item(IdemSelection *selection, JsonPath *path, JsonPathItem *item)
{
	Step		step = {0};

	switch ((int) item->type)
	{
		case jpiKey:
			step.kind = STEP_KEY;
			step.key = jspGetString(item, &step.keylen);
			break;
		case jpiAnyKey:
			step.kind = STEP_ANY_KEY;
			break;
		case jpiIndexArray:
			step.kind = STEP_ELEMENT;
			step.index = element_index(path, item);
			break;
		case jpiAnyArray:
			step.kind = STEP_ANY_ELEMENT;
			break;
		case jpiAny:
			if (item->content.anybounds.first != 0 ||
				item->content.anybounds.last != PG_UINT32_MAX)
				unsupported_path(path, "It has a .** with levels.");
			step.kind = STEP_ANYWHERE;
			break;
		case jpiFilter:
			unsupported_path(path, "It has a filter.");
			break;
		default:
			unsupported_path(path, "It has something that computes instead of naming a place.");
	}
	*add_step(selection) = step;
}

/*
 * Appends the steps of one path, and its end.  The root needs no step.
 */
static void
compile_path(IdemSelection *selection, JsonPath *path)
{
	JsonPathItem item;

	if ((path->header & JSONPATH_LAX) == 0)
		unsupported_path(path, "It is in strict mode.");

	jspInit(&item, path);
	if (item.type != jpiRoot)
		unsupported_path(path, "It does not start with $.");

	while (jspHasNext(&item))
	{
		JsonPathItem next;

		jspGetNext(&item, &next);
		compile_item(selection, path, &next);
		item = next;
	}
	add_step(selection)->kind = STEP_END;
}

/*
 * Appends the steps of all paths of a list.
 */
static void
compile_list(IdemSelection *selection, ArrayType *list, const char *name)
{
	Datum	   *paths;
	bool	   *nulls;
	int			count;

	deconstruct_array(list, JSONPATHOID, -1, false, TYPALIGN_INT,
					  &paths, &nulls, &count);
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("path %d of the %s list is null", i + 1, name),
					 errhint("Leave the path out of the list.")));
		compile_path(selection, DatumGetJsonPathP(paths[i]));
	}
}

/*
 * Adds a state to a set.
 */
static inline void
add_state(uint64 *set, int state)
{
	set[state / WORD_BITS] |= UINT64CONST(1) << (state % WORD_BITS);
}

/*
 * Have two sets a state in common?
 */
static inline bool
sets_meet(const uint64 *a, const uint64 *b, int nwords)
{
	for (int i = 0; i < nwords; i++)
	{
		if ((a[i] & b[i]) != 0)
			return true;
	}
	return false;
}

/*
 * Sorts the states into the four sets by which a node is judged.
 */
static void
classify_states(IdemSelection *selection)
{
	int			nwords = (STATE(selection->nsteps) + WORD_BITS - 1) / WORD_BITS;

	selection->nwords = nwords;
	selection->include_ends = palloc0(nwords * sizeof(uint64));
	selection->exclude_ends = palloc0(nwords * sizeof(uint64));
	selection->include_open = palloc0(nwords * sizeof(uint64));
	selection->exclude_open = palloc0(nwords * sizeof(uint64));

	for (int s = 0; s < selection->nsteps; s++)
	{
		bool		end = selection->steps[s].kind == STEP_END;
		uint64	   *set;

		if (s < selection->include_steps)
			set = end ? selection->include_ends : selection->include_open;
		else
			set = end ? selection->exclude_ends : selection->exclude_open;
		add_state(set, STATE(s));
		add_state(set, UNWRAPPED_STATE(s));
	}
}

/*
 * Compiles an include list and an exclude list; NULL where there is none.  An
 * include list without paths is one that selects nothing.
 *
 * The result points into the lists, which must stay.
 */
IdemSelection *
IdemCompileSelection(ArrayType *include, ArrayType *exclude)
{
	IdemSelection *selection = palloc0(sizeof(IdemSelection));

	selection->has_include = include != NULL;
	selection->maxsteps = 16;
	selection->steps = palloc0(selection->maxsteps * sizeof(Step));
	if (include != NULL)
		compile_list(selection, include, "include");
	selection->include_steps = selection->nsteps;
	if (exclude != NULL)
		compile_list(selection, exclude, "exclude");
	classify_states(selection);

	selection->maxdepth = 16;
	selection->levels = palloc(selection->maxdepth * selection->nwords * sizeof(uint64));
	return selection;
}

/*
 * Is there an include list?
 */
bool
IdemSelectionHasInclude(const IdemSelection *selection)
{
	return selection->has_include;
}

/*
 * The set of states at a depth, with room made for it.
 */
static uint64 *
level_states(IdemSelection *selection, int depth)
{
	if (depth >= selection->maxdepth)
	{
		selection->maxdepth *= 2;
		selection->levels = repalloc_huge(selection->levels,
										  (Size) selection->maxdepth * selection->nwords * sizeof(uint64));
	}
	return selection->levels + (Size) depth * selection->nwords;
}

/*
 * Adds the states that a node has without going down: .** also stands for no
 * step at all, and [*] and [0] for what is not an array.  Steps lead to later
 * ones only, so one pass does.
 */
static void
close_states(const IdemSelection *selection, uint64 *set, IdemNodeKind kind)
{
	for (int i = 0; i < selection->nwords; i++)
	{
		uint64		done = 0;

		while ((set[i] & ~done) != 0)
		{
			int			bit = pg_rightmost_one_pos64(set[i] & ~done);
			int			s = STATE_STEP(i * WORD_BITS + bit);
			const Step *step = &selection->steps[s];

			done |= UINT64CONST(1) << bit;
			if (step->kind == STEP_ANYWHERE ||
				(kind != IDEM_NODE_ARRAY &&
				 (step->kind == STEP_ANY_ELEMENT ||
				  (step->kind == STEP_ELEMENT && step->index == 0))))
				add_state(set, STATE(s + 1));
		}
	}
}

/*
 * Says what the states at a node mean for it.
 */
static int
judge(const IdemSelection *selection, const uint64 *set, IdemNodeKind kind)
{
	int			nwords = selection->nwords;
	int			found = 0;

	if (sets_meet(set, selection->include_ends, nwords))
		found |= IDEM_NODE_INCLUDED;
	if (sets_meet(set, selection->exclude_ends, nwords))
		found |= IDEM_NODE_EXCLUDED;
	if (kind != IDEM_NODE_SCALAR)
	{
		if (sets_meet(set, selection->include_open, nwords))
			found |= IDEM_INCLUDE_BELOW;
		if (sets_meet(set, selection->exclude_open, nwords))
			found |= IDEM_EXCLUDE_BELOW;
	}
	return found;
}

/*
 * Starts a walk at the root; says what the paths make of it.
 */
int
IdemSelectRoot(IdemSelection *selection, IdemNodeKind kind)
{
	uint64	   *set = level_states(selection, 0);

	memset(set, 0, selection->nwords * sizeof(uint64));
	for (int s = 0; s < selection->nsteps; s++)
	{
		if (s == 0 || selection->steps[s - 1].kind == STEP_END)
			add_state(set, STATE(s));
	}
	close_states(selection, set, kind);
	return judge(selection, set, kind);
}

/*
 * Goes from an object at a depth down to one of its members; says what the
 * paths make of that.
 */
int
IdemSelectMember(IdemSelection *selection, int depth,
				 const char *key, int keylen, IdemNodeKind kind)
{
	uint64	   *child = level_states(selection, depth + 1);
	const uint64 *set = level_states(selection, depth);

	memset(child, 0, selection->nwords * sizeof(uint64));
	for (int i = 0; i < selection->nwords; i++)
	{
		for (uint64 word = set[i]; word != 0; word &= word - 1)
		{
			int			s = STATE_STEP(i * WORD_BITS + pg_rightmost_one_pos64(word));
			const Step *step = &selection->steps[s];

			if (step->kind == STEP_ANYWHERE)
				add_state(child, STATE(s));
			else if (step->kind == STEP_ANY_KEY ||
					 (step->kind == STEP_KEY && step->keylen == keylen &&
					  memcmp(step->key, key, keylen) == 0))
				add_state(child, STATE(s + 1));
		}
	}
	close_states(selection, child, kind);
	return judge(selection, child, kind);
}

/*
 * Goes from an array at a depth down to one of its elements; says what the
 * paths make of that.
 */
int
IdemSelectElement(IdemSelection *selection, int depth,
				  uint32 index, IdemNodeKind kind)
{
	uint64	   *child = level_states(selection, depth + 1);
	const uint64 *set = level_states(selection, depth);

	memset(child, 0, selection->nwords * sizeof(uint64));
	for (int i = 0; i < selection->nwords; i++)
	{
		for (uint64 word = set[i]; word != 0; word &= word - 1)
		{
			int			state = i * WORD_BITS + pg_rightmost_one_pos64(word);
			int			s = STATE_STEP(state);
			const Step *step = &selection->steps[s];

			if (step->kind == STEP_ANYWHERE)
				add_state(child, STATE(s));
			else if (step->kind == STEP_ANY_ELEMENT ||
					 (step->kind == STEP_ELEMENT && step->index == index))
				add_state(child, STATE(s + 1));
			else if ((step->kind == STEP_KEY || step->kind == STEP_ANY_KEY) &&
					 !STATE_IS_UNWRAPPED(state))
				add_state(child, UNWRAPPED_STATE(s));
		}
	}
	close_states(selection, child, kind);
	return judge(selection, child, kind);
}
