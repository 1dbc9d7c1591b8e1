/*-------------------------------------------------------------------------
 *
 * canonical.c
 *	  The canonical text of a jsonb document, and its fingerprint.
 *
 * The text is that of RFC 8785 (JCS) in UTF-8, with one difference: numbers are
 * exact.  The decimal value is laid out as ECMAScript's Number::toString lays
 * out its digits, without going through a double first; so the text is JCS's
 * own wherever a double holds the value, and another one for every other value.
 *
 * The document is walked once, in its binary form, and written through a small
 * buffer into a sink, which is a string or a digest.  Besides the sink's own,
 * memory is taken for the members of the objects that are open (they must be
 * sorted), for keys and pieces of strings that need converting, and for the
 * digits of one number.
 *
 * With include or exclude paths the same walk carries the states of selection.c
 * along.  What an include path selects is known only when the walk gets there,
 * and its ancestors must have been written by then: so a container waits with
 * its bracket, and with everything above it, until something in it is written.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"

#include "canonical.h"
#include "compat.h"
#include "digest.h"
#include "selection.h"

/* Bytes collected before they go to the sink */
#define SINK_BUFFER_SIZE	4096

/* Longer runs go straight to the sink, in slices with a look at interrupts between */
#define SINK_SLICE_SIZE		(1024 * 1024)

/* A string that needs converting is converted in pieces of at most this size */
#define CONVERSION_SIZE		8192

/* A number's digits up to this many are kept on the stack */
#define STACK_DIGITS		256

/* ECMAScript's Number::toString: the longest plain layouts */
#define PLAIN_MAX_POINT		21	/* up to 21 digits before the point */
#define PLAIN_MIN_POINT		(-6)	/* fewer than 6 zeros after "0." */

/* numeric_send's signs and digit groups */
#define WIRE_POSITIVE		0x0000
#define WIRE_NEGATIVE		0x4000
#define WIRE_HEADER_SIZE	(4 * sizeof(uint16))
#define WIRE_GROUP_DIGITS	4

/* One member of an object that is being written. */
typedef struct Member
{
	const char *key;			/* as stored, in the server's encoding */
	const char *name;			/* the key in UTF-8; the key itself if that is UTF-8 */
	uint64		prefix;			/* begin of the name, for sorting */
	uint32		keylen;
	uint32		namelen;
	uint32		child;			/* number of the value among the children */
	uint32		offset;			/* where the value starts */
} Member;

/* The work in progress: one for each document. */
typedef struct Writer
{
	StringInfo	text;			/* the sink; NULL: the digest */
	bool		convert;		/* the server's encoding is not UTF-8 */
	Member	   *members;		/* members of all open objects, innermost last */
	int			nmembers;
	int			maxmembers;
	IdemSelection *selection;	/* NULL: the whole document */
	bool		included;		/* an include path has hit */
	int			used;			/* of the buffer */
	char		buffer[SINK_BUFFER_SIZE];
} Writer;

/* A child of a container, in its binary form. */
typedef struct Child
{
	JEntry		entry;			/* its type */
	const char *base;			/* start of the container's data */
	uint32		offset;			/* of the child in it, before alignment */
	uint32		length;
} Child;

/* A container on the way down, in a walk with a selection. */
typedef struct Frame
{
	struct Frame *parent;
	int			member;			/* the member being walked, in an object */
	bool		is_object;
	bool		opened;			/* its bracket has been written */
	bool		separate;		/* and something in it: a comma comes first */
} Frame;

/* What a walk with a selection does with what it meets. */
typedef enum WalkMode
{
	WALK_SEEK,					/* nothing is written until an include path hits */
	WALK_KEEP,					/* everything is written but what is excluded */
	WALK_MUTE					/* excluded: nothing is written, but a hit opens
								 * the containers above */
} WalkMode;

static void write_child(Writer *w, const Child *child);
static void select_child(Writer *w, const Child *child, int found,
						 Frame *parent, WalkMode mode, int depth);

/*
 * Characters that a JSON string must escape.
 */
static inline bool
needs_escape(unsigned char c)
{
	return c < 0x20 || c == '"' || c == '\\';
}

/*
 * Hands bytes to the sink.  Everything that is written comes through here, so
 * this is where a long document can be cancelled.
 */
static void
drain(Writer *w, const char *data, size_t length)
{
	CHECK_FOR_INTERRUPTS();
	if (w->text != NULL)
		appendBinaryStringInfo(w->text, data, length);
	else
		IdemDigestAdd(data, length);
}

/*
 * Empties the buffer.
 */
static void
flush_buffer(Writer *w)
{
	drain(w, w->buffer, w->used);
	w->used = 0;
}

/*
 * Writes bytes that do not fit into the buffer.
 */
static void
put_long(Writer *w, const char *data, size_t length)
{
	flush_buffer(w);
	while (length >= SINK_BUFFER_SIZE)
	{
		size_t		slice = Min(length, SINK_SLICE_SIZE);

		drain(w, data, slice);
		data += slice;
		length -= slice;
	}
	memcpy(w->buffer, data, length);
	w->used = length;
}

/*
 * Writes bytes.
 */
static inline void
put_bytes(Writer *w, const char *data, size_t length)
{
	if (length > SINK_BUFFER_SIZE - w->used)
		put_long(w, data, length);
	else
	{
		memcpy(w->buffer + w->used, data, length);
		w->used += length;
	}
}

/*
 * Writes one byte.
 */
static inline void
put_char(Writer *w, char c)
{
	if (w->used == SINK_BUFFER_SIZE)
		flush_buffer(w);
	w->buffer[w->used++] = c;
}

/*
 * Writes zeros, as a number's layout wants them (at most 20).
 */
static void
put_zeros(Writer *w, int count)
{
	while (count-- > 0)
		put_char(w, '0');
}

/*
 * Is there nothing but ASCII?  That is the same in every server encoding.
 */
static bool
is_ascii(const char *s, size_t length)
{
	const char *end = s + length;

	while (s < end)
	{
		if (IS_HIGHBIT_SET(*s++))
			return false;
	}
	return true;
}

/*
 * A string in UTF-8: the string itself where it is UTF-8 already, else a
 * palloc'd one.
 *
 * A SQL_ASCII database does not say what its bytes are.  UTF-8 is taken as such;
 * anything else has no characters to hash.
 */
static const char *
to_utf8(Writer *w, const char *s, uint32 length, uint32 *newlength)
{
	const char *converted;

	*newlength = length;
	if (!w->convert || is_ascii(s, length))
		return s;

	if (GetDatabaseEncoding() == PG_SQL_ASCII)
	{
		if (!pg_verify_mbstr(PG_UTF8, s, length, true))
			ereport(ERROR,
					(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
					 errmsg("a string in the document is not valid UTF-8"),
					 errdetail("The database encoding is SQL_ASCII, so its bytes cannot be converted."),
					 errhint("Store UTF-8 only, or use a database with another encoding.")));
		return s;
	}

	converted = pg_server_to_any(s, length, PG_UTF8);
	if (converted != s)
		*newlength = strlen(converted);
	return converted;
}

/*
 * Writes one escaped character: the two-character escapes where JSON has them,
 * else \u00xx in lower case.
 */
static void
write_escape(Writer *w, unsigned char c)
{
	static const char hex[] = "0123456789abcdef";
	const char *shorthand = NULL;

	switch (c)
	{
		case '"':
			shorthand = "\\\"";
			break;
		case '\\':
			shorthand = "\\\\";
			break;
		case '\b':
			shorthand = "\\b";
			break;
		case '\f':
			shorthand = "\\f";
			break;
		case '\n':
			shorthand = "\\n";
			break;
		case '\r':
			shorthand = "\\r";
			break;
		case '\t':
			shorthand = "\\t";
			break;
	}
	if (shorthand != NULL)
		put_bytes(w, shorthand, 2);
	else
	{
		put_bytes(w, "\\u00", 4);
		put_char(w, hex[c >> 4]);
		put_char(w, hex[c & 0x0F]);
	}
}

/*
 * Writes UTF-8, escaping what must be escaped and nothing else.
 */
static void
write_escaped(Writer *w, const char *s, size_t length)
{
	const char *end = s + length;

	while (s < end)
	{
		const char *run = s;

		while (s < end && !needs_escape((unsigned char) *s))
			s++;
		put_bytes(w, run, s - run);
		if (s < end)
			write_escape(w, (unsigned char) *s++);
	}
}

/*
 * Writes a string value.  One that needs converting is converted in pieces, so
 * that a long string does not take several times its size in memory.
 */
static void
write_string(Writer *w, const char *s, uint32 length)
{
	put_char(w, '"');
	if (!w->convert || GetDatabaseEncoding() == PG_SQL_ASCII)
		write_escaped(w, to_utf8(w, s, length, &length), length);
	else
	{
		while (length > 0)
		{
			uint32		piece = pg_mbcliplen(s, length, CONVERSION_SIZE);
			uint32		utf8len;
			const char *utf8 = to_utf8(w, s, piece, &utf8len);

			write_escaped(w, utf8, utf8len);
			if (utf8 != s)
				pfree(unconstify(char *, utf8));
			s += piece;
			length -= piece;
		}
	}
	put_char(w, '"');
}

/*
 * Writes a number of the given digits, without outer zeros, of which `point`
 * stand before the decimal point; laid out as Number::toString (ECMA-262) does
 * with the digits of a double.
 */
static void
write_digits(Writer *w, const char *digits, int count, int point)
{
	char		exponent[16];
	int			length;

	if (count <= point && point <= PLAIN_MAX_POINT)
	{
		put_bytes(w, digits, count);
		put_zeros(w, point - count);
	}
	else if (0 < point && point <= PLAIN_MAX_POINT)
	{
		put_bytes(w, digits, point);
		put_char(w, '.');
		put_bytes(w, digits + point, count - point);
	}
	else if (PLAIN_MIN_POINT < point && point <= 0)
	{
		put_bytes(w, "0.", 2);
		put_zeros(w, -point);
		put_bytes(w, digits, count);
	}
	else
	{
		put_char(w, digits[0]);
		if (count > 1)
		{
			put_char(w, '.');
			put_bytes(w, digits + 1, count - 1);
		}
		put_char(w, 'e');
		if (point > 0)
			put_char(w, '+');
		length = pg_ltoa(point - 1, exponent);
		put_bytes(w, exponent, length);
	}
}

/*
 * Reads a 16-bit integer of numeric_send's form.
 */
static inline uint16
wire_uint16(const char *wire, int index)
{
	uint16		value;

	memcpy(&value, wire + index * sizeof(uint16), sizeof(uint16));
	return pg_ntoh16(value);
}

/*
 * Turns the digit groups of numeric_send's form, each four decimal digits, into
 * characters.
 */
static void
spell_groups(char *digits, const char *wire, int ngroups)
{
	for (int i = 0; i < ngroups; i++)
	{
		unsigned int group = wire_uint16(wire, i);

		*digits++ = '0' + group / 1000;
		*digits++ = '0' + group / 100 % 10;
		*digits++ = '0' + group / 10 % 10;
		*digits++ = '0' + group % 10;
	}
}

/*
 * Writes a number.
 *
 * It is read from numeric_send's form, which has the significant digits and the
 * weight of the first group: 1e131071 has one group.  Its text has 131,072
 * digits, and must never be built.
 *
 * Not inline, or every container on the way down would hold these locals on the
 * stack.
 */
static pg_noinline void
write_number(Writer *w, Numeric number)
{
	bytea	   *sent = DatumGetByteaPP(DirectFunctionCall1(numeric_send,
														   NumericGetDatum(number)));
	const char *wire = VARDATA_ANY(sent);
	int			ngroups = wire_uint16(wire, 0);
	int			point = ((int16) wire_uint16(wire, 1) + 1) * WIRE_GROUP_DIGITS;
	uint16		sign = wire_uint16(wire, 2);
	int			count = ngroups * WIRE_GROUP_DIGITS;
	char		local[STACK_DIGITS];
	char	   *buffer = count <= STACK_DIGITS ? local : palloc(count);
	char	   *digits = buffer;

	/* jsonb has neither NaN nor infinity */
	if (sign != WIRE_POSITIVE && sign != WIRE_NEGATIVE)
		elog(ERROR, "unexpected sign of a number in jsonb: 0x%04X", sign);

	spell_groups(buffer, wire + WIRE_HEADER_SIZE, ngroups);
	while (count > 0 && *digits == '0')
	{
		digits++;
		count--;
		point--;
	}
	while (count > 0 && digits[count - 1] == '0')
		count--;

	if (count == 0)
		put_char(w, '0');
	else
	{
		if (sign == WIRE_NEGATIVE)
			put_char(w, '-');
		write_digits(w, digits, count, point);
	}

	if (buffer != local)
		pfree(buffer);
	pfree(sent);
}

/*
 * The container that a child is.  Containers and numbers are aligned within
 * their parent's data.
 */
static inline JsonbContainer *
child_container(const Child *child)
{
	return (JsonbContainer *) (child->base + INTALIGN(child->offset));
}

/*
 * Makes out the child of a container that starts at an offset, and moves the
 * offset to the next one.  A few children carry their end instead of their
 * length.
 */
static inline void
next_child(Child *child, JEntry entry, const char *base, uint32 *offset)
{
	child->entry = entry;
	child->base = base;
	child->offset = *offset;
	JBE_ADVANCE_OFFSET(*offset, entry);
	child->length = *offset - child->offset;
}

/*
 * Makes out the value of a member.
 */
static inline void
member_value(Child *child, const JsonbContainer *object, const Member *member)
{
	uint32		offset = member->offset;

	next_child(child, object->children[member->child],
			   (const char *) &object->children[JsonContainerSize(object) * 2],
			   &offset);
}

/*
 * Where a byte of UTF-8 stands in the order of UTF-16 code units.  That order
 * agrees with the order of UTF-8 but for one thing: beyond U+FFFF there are
 * surrogates (D800 to DFFF), which come before U+E000 to U+FFFF.  In UTF-8 these
 * two ranges begin with F0 to F4, and with EE and EF.
 */
static inline unsigned char
utf16_rank(unsigned char byte)
{
	if (byte < 0xEE)
		return byte;
	return byte >= 0xF0 ? byte - 2 : byte + 5;
}

/*
 * The first eight bytes of a name as a number that sorts as they do.  A shorter
 * name is filled up with zeros, which no name contains.
 */
static inline uint64
name_prefix(const char *name, uint32 length)
{
	uint64		prefix = 0;

	if (length >= sizeof(prefix))
	{
		memcpy(&prefix, name, sizeof(prefix));
		if ((prefix & UINT64CONST(0x8080808080808080)) == 0)
			return pg_ntoh64(prefix);
		prefix = 0;
	}
	for (uint32 i = 0; i < sizeof(uint64); i++)
		prefix = prefix << 8 | (i < length ? utf16_rank((unsigned char) name[i]) : 0);
	return prefix;
}

/*
 * The order of UTF-16 code units.
 */
static inline int
compare_members(const Member *left, const Member *right)
{
	uint32		length = Min(left->namelen, right->namelen);

	if (left->prefix != right->prefix)
		return left->prefix < right->prefix ? -1 : 1;

	for (uint32 i = sizeof(uint64); i < length; i++)
	{
		if (left->name[i] != right->name[i])
			return (int) utf16_rank((unsigned char) left->name[i]) -
				(int) utf16_rank((unsigned char) right->name[i]);
	}
	if (left->namelen == right->namelen)
		return 0;
	return left->namelen < right->namelen ? -1 : 1;
}

#define ST_SORT sort_members
#define ST_ELEMENT_TYPE Member
#define ST_COMPARE(a, b) compare_members(a, b)
#define ST_CHECK_FOR_INTERRUPTS
#define ST_SCOPE static
#define ST_DEFINE
#include "lib/sort_template.h"

/*
 * Makes room for the members of one more object.
 */
static void
reserve_members(Writer *w, uint32 count)
{
	if (w->nmembers + count <= w->maxmembers)
		return;

	w->maxmembers = Max(w->nmembers + count, 2 * w->maxmembers);
	w->maxmembers = Max(w->maxmembers, 64);
	if (w->members == NULL)
		w->members = palloc_extended(w->maxmembers * sizeof(Member), MCXT_ALLOC_HUGE);
	else
		w->members = repalloc_huge(w->members, w->maxmembers * sizeof(Member));
}

/*
 * Puts an object's members on the stack of members, in canonical order; returns
 * where they begin.  pop_members takes them off again.
 */
static int
push_members(Writer *w, const JsonbContainer *object)
{
	uint32		count = JsonContainerSize(object);
	const char *base = (const char *) &object->children[count * 2];
	uint32		keyoffset = 0;
	uint32		offset = getJsonbOffset(object, count);
	int			first = w->nmembers;

	reserve_members(w, count);
	for (uint32 i = 0; i < count; i++)
	{
		Member	   *member = &w->members[first + i];
		Child		key;

		next_child(&key, object->children[i], base, &keyoffset);
		member->key = base + key.offset;
		member->keylen = key.length;
		member->name = to_utf8(w, member->key, member->keylen, &member->namelen);
		member->prefix = name_prefix(member->name, member->namelen);
		member->child = count + i;
		member->offset = offset;
		JBE_ADVANCE_OFFSET(offset, object->children[count + i]);
	}
	w->nmembers = first + count;

	sort_members(&w->members[first], count);
	return first;
}

/*
 * Takes an object's members off the stack again.
 */
static void
pop_members(Writer *w, int first)
{
	if (w->convert)
	{
		for (int i = first; i < w->nmembers; i++)
		{
			if (w->members[i].name != w->members[i].key)
				pfree(unconstify(char *, w->members[i].name));
		}
	}
	w->nmembers = first;
}

/*
 * Writes a member's key.
 */
static void
write_key(Writer *w, const Member *member)
{
	put_char(w, '"');
	write_escaped(w, member->name, member->namelen);
	put_bytes(w, "\":", 2);
}

/*
 * Writes an array and all that is in it.
 */
static void
write_array(Writer *w, const JsonbContainer *array)
{
	uint32		count = JsonContainerSize(array);
	const char *base = (const char *) &array->children[count];
	uint32		offset = 0;

	put_char(w, '[');
	for (uint32 i = 0; i < count; i++)
	{
		Child		child;

		CHECK_FOR_INTERRUPTS();
		next_child(&child, array->children[i], base, &offset);
		if (i > 0)
			put_char(w, ',');
		write_child(w, &child);
	}
	put_char(w, ']');
}

/*
 * Writes an object and all that is in it.  The stack of members may move while
 * a value is being written.
 */
static void
write_object(Writer *w, const JsonbContainer *object)
{
	int			first = push_members(w, object);
	int			end = w->nmembers;

	put_char(w, '{');
	for (int i = first; i < end; i++)
	{
		Child		child;

		CHECK_FOR_INTERRUPTS();
		if (i > first)
			put_char(w, ',');
		write_key(w, &w->members[i]);
		member_value(&child, object, &w->members[i]);
		write_child(w, &child);
	}
	put_char(w, '}');
	pop_members(w, first);
}

/*
 * Writes a value, whole.
 */
static void
write_child(Writer *w, const Child *child)
{
	switch (child->entry & JENTRY_TYPEMASK)
	{
		case JENTRY_ISSTRING:
			write_string(w, child->base + child->offset, child->length);
			break;
		case JENTRY_ISNUMERIC:
			write_number(w, (Numeric) (child->base + INTALIGN(child->offset)));
			break;
		case JENTRY_ISBOOL_FALSE:
			put_bytes(w, "false", 5);
			break;
		case JENTRY_ISBOOL_TRUE:
			put_bytes(w, "true", 4);
			break;
		case JENTRY_ISNULL:
			put_bytes(w, "null", 4);
			break;
		case JENTRY_ISCONTAINER:
			check_stack_depth();
			if (JsonContainerIsObject(child_container(child)))
				write_object(w, child_container(child));
			else
				write_array(w, child_container(child));
			break;
		default:
			elog(ERROR, "unexpected type of a jsonb entry: 0x%08X", child->entry);
	}
}

/*
 * What a value is to a jsonpath.
 */
static IdemNodeKind
node_kind(const Child *child)
{
	if (!JBE_ISCONTAINER(child->entry))
		return IDEM_NODE_SCALAR;
	if (JsonContainerIsObject(child_container(child)))
		return IDEM_NODE_OBJECT;
	return IDEM_NODE_ARRAY;
}

/*
 * Writes what comes before the next thing in an open container.
 */
static void
write_separator(Writer *w, Frame *frame)
{
	if (frame->separate)
		put_char(w, ',');
	frame->separate = true;
	if (frame->is_object)
		write_key(w, &w->members[frame->member]);
}

/*
 * Writes the bracket of a container and of everything above it, as far as that
 * has not been done.
 */
static void
open_frame(Writer *w, Frame *frame)
{
	if (frame == NULL || frame->opened)
		return;

	check_stack_depth();
	if (frame->parent != NULL)
	{
		open_frame(w, frame->parent);
		write_separator(w, frame->parent);
	}
	put_char(w, frame->is_object ? '{' : '[');
	frame->opened = true;
}

/*
 * Walks an array's elements.
 */
static void
select_elements(Writer *w, const JsonbContainer *array, Frame *frame,
				WalkMode mode, int depth)
{
	uint32		count = JsonContainerSize(array);
	const char *base = (const char *) &array->children[count];
	uint32		offset = 0;

	for (uint32 i = 0; i < count; i++)
	{
		Child		child;
		int			found;

		CHECK_FOR_INTERRUPTS();
		next_child(&child, array->children[i], base, &offset);
		found = IdemSelectElement(w->selection, depth, i, node_kind(&child));
		select_child(w, &child, found, frame, mode, depth + 1);
	}
}

/*
 * Walks an object's members.
 */
static void
select_members(Writer *w, const JsonbContainer *object, Frame *frame,
			   WalkMode mode, int depth)
{
	int			first = push_members(w, object);
	int			end = w->nmembers;

	for (int i = first; i < end; i++)
	{
		const Member *member = &w->members[i];
		Child		child;
		int			found;

		CHECK_FOR_INTERRUPTS();
		member_value(&child, object, member);
		found = IdemSelectMember(w->selection, depth,
								 member->key, member->keylen, node_kind(&child));
		if (mode != WALK_MUTE)
			frame->member = i;
		select_child(w, &child, found, frame, mode, depth + 1);
	}
	pop_members(w, first);
}

/*
 * Walks a container in which a path may still end.
 */
static void
select_container(Writer *w, const JsonbContainer *container, Frame *parent,
				 WalkMode mode, int depth)
{
	Frame		own = {.parent = parent,.is_object = JsonContainerIsObject(container)};
	Frame	   *frame = mode == WALK_MUTE ? parent : &own;

	check_stack_depth();
	if (mode == WALK_KEEP)
		open_frame(w, &own);
	if (own.is_object)
		select_members(w, container, frame, mode, depth);
	else
		select_elements(w, container, frame, mode, depth);
	if (own.opened)
		put_char(w, own.is_object ? '}' : ']');
}

/*
 * Walks a value: keeps it, drops it, or looks into it.
 *
 * An excluded value is dropped whole, but a path of the include list that ends
 * in it has hit all the same, so the containers above it are there.
 */
static void
select_child(Writer *w, const Child *child, int found,
			 Frame *parent, WalkMode mode, int depth)
{
	if ((found & IDEM_NODE_INCLUDED) && mode != WALK_KEEP)
	{
		w->included = true;
		open_frame(w, parent);
		if (mode == WALK_SEEK)
			mode = WALK_KEEP;
	}
	if (found & IDEM_NODE_EXCLUDED)
	{
		if (mode == WALK_KEEP)
			return;
		mode = WALK_MUTE;
	}

	if (mode == WALK_KEEP && !(found & IDEM_EXCLUDE_BELOW))
	{
		if (parent != NULL)
			write_separator(w, parent);
		write_child(w, child);
	}
	else if (mode == WALK_KEEP || (found & IDEM_INCLUDE_BELOW))
		select_container(w, child_container(child), parent, mode, depth);
}

/*
 * The document itself as a child.  A scalar is stored as the only element of an
 * array that is not there.
 */
static void
root_child(Child *root, const Jsonb *doc)
{
	uint32		offset = 0;

	if (JB_ROOT_IS_SCALAR(doc))
		next_child(root, doc->root.children[0],
				   (const char *) &doc->root.children[1], &offset);
	else
	{
		root->entry = JENTRY_ISCONTAINER;
		root->base = (const char *) &doc->root;
		root->offset = 0;
		root->length = VARSIZE(doc) - VARHDRSZ;
	}
}

/*
 * Writes what include and exclude leave of a document.  A selection that leaves
 * nothing of any such document would give all of them the same text, so that is
 * an error.
 */
static void
write_selected(Writer *w, const Child *root)
{
	bool		all = !IdemSelectionHasInclude(w->selection);
	int			found = IdemSelectRoot(w->selection, node_kind(root));

	if (found & IDEM_NODE_EXCLUDED)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the exclude list removes the whole document"),
				 errhint("All requests would share one fingerprint: exclude members of the document, not the document.")));

	select_child(w, root, found, NULL, all ? WALK_KEEP : WALK_SEEK, 0);

	if (!all && !w->included)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no path of the include list selects anything in the document"),
				 errhint("All such requests would share one fingerprint: include something that every request has, or pass NULL to include the whole document.")));
}

/*
 * Writes the canonical text of a document, or of a selection from it, to a
 * sink: a string, or with NULL the digest.
 */
static void
write_document(const Jsonb *doc, IdemSelection *selection, StringInfo text)
{
	Writer		w;
	Child		root;

	w.text = text;
	w.convert = GetDatabaseEncoding() != PG_UTF8;
	w.members = NULL;
	w.nmembers = 0;
	w.maxmembers = 0;
	w.selection = selection;
	w.included = false;
	w.used = 0;

	root_child(&root, doc);
	if (selection == NULL)
		write_child(&w, &root);
	else
		write_selected(&w, &root);
	flush_buffer(&w);

	if (w.members != NULL)
		pfree(w.members);
}

/*
 * Computes the canonical fingerprint of a document: SHA-256 of its canonical
 * text.
 */
void
IdemFingerprint(Jsonb *doc, uint8 digest[IDEM_FINGERPRINT_BYTES])
{
	IdemDigestBegin();
	write_document(doc, NULL, NULL);
	IdemDigestEnd(digest);
}

/*
 * The selection that the arguments include and exclude describe; NULL for the
 * whole document.
 */
static IdemSelection *
selection_arguments(FunctionCallInfo fcinfo, int include, int exclude)
{
	if (PG_ARGISNULL(include) && PG_ARGISNULL(exclude))
		return NULL;

	return IdemCompileSelection(PG_ARGISNULL(include) ? NULL : PG_GETARG_ARRAYTYPE_P(include),
								PG_ARGISNULL(exclude) ? NULL : PG_GETARG_ARRAYTYPE_P(exclude));
}

/*
 * idem_canonical_fingerprint(doc jsonb, include jsonpath[], exclude jsonpath[])
 *		SHA-256 of the canonical text; NULL for NULL.
 */
PG_FUNCTION_INFO_V1(idem_canonical_fingerprint);
Datum
idem_canonical_fingerprint(PG_FUNCTION_ARGS)
{
	IdemSelection *selection = selection_arguments(fcinfo, 1, 2);
	bytea	   *result;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();

	result = palloc(VARHDRSZ + IDEM_FINGERPRINT_BYTES);
	SET_VARSIZE(result, VARHDRSZ + IDEM_FINGERPRINT_BYTES);
	IdemDigestBegin();
	write_document(PG_GETARG_JSONB_P(0), selection, NULL);
	IdemDigestEnd((uint8 *) VARDATA(result));
	PG_RETURN_BYTEA_P(result);
}

/*
 * idem_canonical_json(doc jsonb, include jsonpath[], exclude jsonpath[])
 *		The canonical text itself; NULL for NULL.
 *
 * A text is in the server's encoding, so where that is not UTF-8 the text is
 * converted back: convert_to(..., 'UTF8') gives the bytes that are hashed.
 */
PG_FUNCTION_INFO_V1(idem_canonical_json);
Datum
idem_canonical_json(PG_FUNCTION_ARGS)
{
	IdemSelection *selection = selection_arguments(fcinfo, 1, 2);
	StringInfoData text;
	char	   *converted;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();

	initStringInfo(&text);
	appendStringInfoSpaces(&text, VARHDRSZ);
	write_document(PG_GETARG_JSONB_P(0), selection, &text);

	converted = pg_any_to_server(text.data + VARHDRSZ, text.len - VARHDRSZ, PG_UTF8);
	if (converted != text.data + VARHDRSZ)
		PG_RETURN_TEXT_P(cstring_to_text(converted));

	SET_VARSIZE(text.data, text.len);
	PG_RETURN_TEXT_P(text.data);
}
