/* SPDX-License-Identifier: Apache-2.0 */
/* The heap of the engine's sources, which are compiled with this file in front: the same addresses in each run. */
#ifndef ROOST_INTERLEAVE_HEAP_H
#define ROOST_INTERLEAVE_HEAP_H

#include <stdlib.h>

void *heap_malloc(size_t size);
void *heap_calloc(size_t count, size_t size);
void *heap_realloc(void *old, size_t size);
void heap_free(void *memory);

#ifdef ROOST_ENGINE_HEAP
#define malloc(size) heap_malloc(size)
#define calloc(count, size) heap_calloc(count, size)
#define realloc(old, size) heap_realloc(old, size)
#define free(memory) heap_free(memory)
#endif

#endif
