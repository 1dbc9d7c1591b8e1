/*-------------------------------------------------------------------------
 *
 * selection.h
 *	  Which parts of a document a set of jsonpaths selects.
 *
 * The paths are compiled into one automaton that walks down the document
 * together with whoever writes it.  The walker keeps one set of states for each
 * depth; going down one level derives the child's set from its parent's.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SELECTION_H
#define IDEM_SELECTION_H

#include "utils/array.h"

/* What the states at a node say about it and about what is below. */
#define IDEM_NODE_INCLUDED		0x01	/* an include path ends here */
#define IDEM_NODE_EXCLUDED		0x02	/* an exclude path ends here */
#define IDEM_INCLUDE_BELOW		0x04	/* an include path may end further down */
#define IDEM_EXCLUDE_BELOW		0x08	/* an exclude path may end further down */

/* What a node is to a path: only an array is unwrapped, only a non-array wrapped. */
typedef enum IdemNodeKind
{
	IDEM_NODE_SCALAR,
	IDEM_NODE_ARRAY,
	IDEM_NODE_OBJECT
} IdemNodeKind;

typedef struct IdemSelection IdemSelection;

extern IdemSelection *IdemCompileSelection(ArrayType *include, ArrayType *exclude);
extern bool IdemSelectionHasInclude(const IdemSelection *selection);
extern int	IdemSelectRoot(IdemSelection *selection, IdemNodeKind kind);
extern int	IdemSelectMember(IdemSelection *selection, int depth,
							 const char *key, int keylen, IdemNodeKind kind);
extern int	IdemSelectElement(IdemSelection *selection, int depth,
							  uint32 index, IdemNodeKind kind);

#endif							/* IDEM_SELECTION_H */
