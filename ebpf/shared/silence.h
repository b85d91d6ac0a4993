/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * For how long clients were silent before they were heard again: counted by policy class and logarithm of the seconds. What a probe
 * finds tells which silences the networks between bear: an eighth of an octave is as fine as a time-out is to be known.
 */
#ifndef ROOST_SILENCE_H
#define ROOST_SILENCE_H

#include "class.h"
#include "record.h"

#define ROOST_SILENCES                                                                                                 \
    16 /* 0: less than 16 s; n: 2^(n+3) s and more, but less than the next; the last: 2^18 s and more */

#define ROOST_ANSWERS                                                                                                  \
    120 /* 0 to 7: 2 s each; 8 n + m: (8 + m) 2^n s and more, but less than the next; the last: 15 * 2^14 s and more */

/* There is a place for so many of the services, and for as many of what rules and connections have in place of their defaults: the
 * first ones. Of others nothing is counted. */
#define ROOST_SILENCE_EACH 128
#define ROOST_SILENCE_PLACES (2 * ROOST_SILENCE_EACH)

static inline __u32 roost_silence_place(__u32 class) {
    __u32 n = class < ROOST_CLASS_SERVICES ? class : class - ROOST_CLASS_SERVICES;
    return n >= ROOST_SILENCE_EACH ? ROOST_SILENCE_PLACES : n + (n == class ? 0 : ROOST_SILENCE_EACH);
}

static inline __u32 roost_silence_class(__u32 place) {
    return place < ROOST_SILENCE_EACH ? place : place - ROOST_SILENCE_EACH + ROOST_CLASS_SERVICES;
}

/* Of a class, on one processor; the numbers wrap. */
struct roost_silences {
    __u32 spoke[ROOST_SILENCES];   /* the client said something by itself */
    __u32 answered[ROOST_ANSWERS]; /* it answered a probe of ours */
};

/* Seconds since a client was heard (roost_ka.heard). Past ROOST_SILENCE_MAX_S it is not known any more how long: the engine
 * keeps it there. */
static inline __u32 roost_silence_s(__u32 heard, __u32 now_s) {
    __u32 silence_s = (now_s - (heard >> ROOST_HEARD_SHIFT)) & (ROOST_HEARD_WRAP_S - 1);
    return silence_s < ROOST_HEARD_WRAP_S - ROOST_HEARD_AHEAD_S ? silence_s : 0;
}

/* How many bits a number has: all below the highest are set and counted, without a branch, of which the verifier would follow both
 * ways for each packet. */
static inline __u32 roost_bits(__u32 n) {
    n |= n >> 1;
    n |= n >> 2;
    n |= n >> 4;
    n |= n >> 8;
    n -= (n >> 1) & 0x55555555u;
    n = (n & 0x33333333u) + ((n >> 2) & 0x33333333u);
    n = (n + (n >> 4)) & 0x0f0f0f0fu;
    return (n * 0x01010101u) >> 24;
}

static inline __u32 roost_silence_index(__u32 silence_s) {
    __u32 n = roost_bits(silence_s >> 4);
    return n < ROOST_SILENCES ? n : ROOST_SILENCES - 1;
}

static inline __u32 roost_answer_index(__u32 silence_s) {
    __u32 octave = roost_bits(silence_s >> 4); /* 0: less than 16 s, in steps as wide as those of the next one */
    __u32 n = 8 * octave + ((silence_s >> (octave + ((octave - 1) >> 31))) & 7);
    return n < ROOST_ANSWERS ? n : ROOST_ANSWERS - 1;
}

#endif
