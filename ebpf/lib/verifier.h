/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the verifier is told, and what is kept from it, so that it admits a program and is soon done: a start waits for it. */
#ifndef ROOST_VERIFIER_H
#define ROOST_VERIFIER_H

/* A function that the verifier follows once, and not for each way that leads to it. It knows nothing then of what the
 * arguments are, nor that a pointer is not NULL. */
#ifndef GLOBAL
#define GLOBAL __attribute__((noinline))
#endif

/* Clang forgets where a number came from, and so keeps the comparisons that the verifier needs: it would leave out one
 * that an earlier one made superfluous, or turn two bounds into one comparison of a difference in another register. */
#define KEEP(n) asm volatile("" : "+r"(n))

/* Whether n is one of these, by two comparisons of one register, so that the verifier knows both bounds. */
#define WITHIN(n, least, most)                                                                                         \
    (({                                                                                                                \
         KEEP(n);                                                                                                      \
         (n) >= (least);                                                                                               \
     }) &&                                                                                                             \
     ({                                                                                                                \
         KEEP(n);                                                                                                      \
         (n) <= (most);                                                                                                \
     }))

/* n stays what it is, and the verifier does not know it any more: where ways come together that differ by that alone, it
 * follows one of them. unknown: a number of which it knows nothing. */
#define FORGET(n, unknown)                                                                                             \
    do {                                                                                                               \
        __u32 same = (unknown);                                                                                        \
        KEEP(same);                                                                                                    \
        (n) += (unknown);                                                                                              \
        KEEP(n);                                                                                                       \
        (n) -= same;                                                                                                   \
    } while (0)

#endif
