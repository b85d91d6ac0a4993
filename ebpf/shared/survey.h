/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What the engine reads of many sockets at once (survey.bpf.c): for each the 4-tuple goes in, and what a record is
 * made of comes out.
 */
#ifndef ROOST_SURVEY_H
#define ROOST_SURVEY_H

#include "record.h"

#define ROOST_SURVEY_SLICE 16  /* sockets at most in one run */
#define ROOST_SURVEY_SLICES 16 /* runs that may be under way at the same time */

/* Bits of roost_survey_item.found. */
enum {
    ROOST_SURVEY_ESTABLISHED = 1, /* there is such a socket, ESTABLISHED; otherwise nothing else is filled in */
    ROOST_SURVEY_REPAIR = 2, /* it is in repair mode: it is the socket that was put there, and no successor of it */
    ROOST_SURVEY_QUEUED = 4, /* something is in one of its queues */
    ROOST_SURVEY_USEC = 8,   /* its timestamps count microseconds */
};

struct roost_survey_item {
    struct roost_key key; /* in */
    __u32 found;
    __u32 flags; /* ROOST_F_TIMESTAMPS, ROOST_F_SACK, ROOST_F_WSCALE */
    __u32 write_seq, rcv_nxt;
    __u32 snd_wnd, max_window;
    __u32 rcv_wnd, rcv_wup; /* the window in bytes; rcv_nxt as last acknowledged */
    __u32 ts_offset;        /* TSval = CLOCK_MONOTONIC in ms + ts_offset */
    __u16 mss;
    __u8 snd_wscale, rcv_wscale;
} __attribute__((aligned(8))); /* as the elements of an array map are */

#endif
