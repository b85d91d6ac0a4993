/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that a schedule switches, and a search through all schedules.
 *
 * The code under test is compiled with clang's -fsanitize=thread, whose calls before each memory access come here instead
 * of to ThreadSanitizer: so the product's own sources are explored, access by access, without a change. Threads are
 * coroutines. A schedule is a list of choices; every run of a scenario follows one, and the search (depth first, each run
 * from the beginning) takes the next one until there are none left.
 *
 * What is explored, and what is not:
 *
 *     preemptions    at any access to shared memory, at most `preemptions` in a run (Musuvathi and Qadeer, PLDI 2007: few
 *                    suffice for nearly all bugs); when a thread ends or waits, every other may go on
 *     shared memory  the words that two threads touch and one writes; which those are is learnt from the runs
 *     stores         a plain or relaxed store may become visible to others late and in any order, until the thread does
 *                    an atomic store with release order, a read-modify-write or a fence: as on arm64 and as compilers
 *                    may do. Of several such stores, all are late, none, one, or all but one.
 *     loads          happen in the order of the program; compiled without ROOST_LOADS_IN_ORDER, one plain load of a run
 *                    may have a value of before the thread was last switched, as far back as its last read-modify-write,
 *                    acquiring load or fence, and not older than what it has loaded from there. That is more than arm64
 *                    does: a load there waits for the one that its address depends on
 *     the end        of a thread that the scenario lets be killed, at each of its stores; it counts as a preemption
 */
#ifndef ROOST_INTERLEAVE_SCHEDULER_H
#define ROOST_INTERLEAVE_SCHEDULER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define THREADS_MAX 4

struct scenario {
    const char *name;
    int threads;
    const char *thread_name[THREADS_MAX];
    void (*begin)(void); /* before each run */
    void (*thread[THREADS_MAX])(void);
    void (*end)(bool killed); /* after each run: the claims about what came of it; killed: thread 0 was */
    int preemptions;          /* most of them in a run */
    bool mortal;              /* thread 0 may be killed */
};

struct explored {
    uint64_t schedules, points; /* runs, and accesses at which a thread could have been switched */
    size_t longest;             /* choices of the longest run */
};

/* Runs a scenario in every schedule. A claim that does not hold ends the process with the schedule on stderr. */
struct explored explore(const struct scenario *s);

/* Lets what is shared lie side by side, so that an access elsewhere is soon told from it. */
#define SHARED __attribute__((section("shared")))
/* Memory in which accesses count. describe: names an address for people. */
void share(const void *memory, size_t size, void (*describe)(const void *at, char *text, size_t size));

/* Claims of a scenario; they may be made anywhere. */
void holds(bool condition, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* For what a scenario models itself, called by its threads: a point at which the thread may be switched, and one at which
 * it cannot go on until something is the case. what: for people. */
void step(const char *what);
/* The same, where other threads have to do with the thing, for which a word in shared memory stands. */
void use(const uint32_t *thing, bool change, const char *what);
void await(bool (*condition)(void), const char *what);

bool others_are_done(void);
int running(void); /* the thread that runs, -1 outside a run */

/* Called with the number of the thread that goes on. */
extern void (*on_switch)(int thread);

#endif
