// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "scheduler.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define STACK_SIZE (256 * 1024)
#define CHOICES_MAX 4096
#define TRACE_MAX 512
#define REGIONS_MAX 12
#define WORDS_MAX 8192
#define PENDING_MAX 64
#define VIEWS_MAX 8      /* of a thread, since its last barrier */
#define EARLY_LOADS 1    /* of a run */
#define PATIENCE 8       /* failures of a compare-and-exchange */
#define MAX_STEPS 200000 /* of one run: more is a loop without an end */

enum state {
    READY,
    WAITING,
    SPINNING,
    DONE,
    KILLED
};

struct pending { /* a store that others need not see yet */
    uint8_t *at;
    unsigned size;
    uint64_t value, before; /* before: what others see; good while the thread does not run */
};

struct view { /* all shared memory, as a thread saw it when it was switched */
    uint64_t at;
    uint8_t bytes[WORDS_MAX * 4];
};

static struct thread {
    ucontext_t context;
    char *stack;
    enum state state;
    bool (*condition)(void);
    const char *waits_for;
    struct pending pending[PENDING_MAX];
    int stores;
    uint8_t *writing; /* the store that it is about to do, until its next access */
    unsigned writing_size;
    uint64_t writing_before;
    const uint8_t *failed_at; /* a compare-and-exchange, the last access of all */
    unsigned failed_size;
    uint64_t failed_value;
    int failures;
    struct view *view; /* VIEWS_MAX, in the order of time */
    int views;
    uint8_t *early_at; /* what is being loaded has the value of an earlier time, until the next access */
    unsigned early_size;
    uint64_t early_now; /* its value at this time */
} threads[THREADS_MAX];
static uint64_t now;                          /* counts views, in all runs */
static uint64_t seen[THREADS_MAX][WORDS_MAX]; /* not before this time may a thread load this word */
static int early_loads;

static struct region {
    const uint8_t *from;
    size_t size, first_word;
    void (*describe)(const void *, char *, size_t);
} regions[REGIONS_MAX];
static int region_count;
static const uint8_t *lowest = (const uint8_t *)UINTPTR_MAX, *highest; /* of all regions */
static size_t words;
static uint8_t touched_by[WORDS_MAX], written_by[WORDS_MAX]; /* threads, as bits */

static const struct scenario *scenario;
static ucontext_t outside;
static int current = -1;
static bool learnt; /* in this run: which thread touches what */
static int preemptions;
static uint64_t steps;
static struct explored explored;

static struct choice { uint16_t taken, of; } choices[CHOICES_MAX];
static size_t chosen, known;

static struct event { /* for people */
    int thread;
    const char *what;
    const void *at, *pc;
    bool write;
} trace[TRACE_MAX];
static size_t traced;

void (*on_switch)(int thread);

int running(void) {
    return current;
}

bool others_are_done(void) {
    bool done = true;
    for (int i = 0; i < scenario->threads; i++)
        done &= i == current || threads[i].state == DONE;
    return done;
}

static void print_event(const struct event *e) {
    char text[128] = "";
    const char *name = e->thread < 0 ? "end" : scenario->thread_name[e->thread];
    for (int i = 0; i < region_count && e->at; i++)
        if ((const uint8_t *)e->at >= regions[i].from && (const uint8_t *)e->at < regions[i].from + regions[i].size)
            regions[i].describe(e->at, text, sizeof(text));
    if (e->at)
        fprintf(stderr, "    %-10s %-6s %-28s @%p\n", name, e->write ? "writes" : "reads", text, e->pc);
    else
        fprintf(stderr, "    %-10s %s\n", name, e->what);
}

static void record(const char *what, const void *at, bool write, const void *pc) {
    trace[traced++ % TRACE_MAX] = (struct event){current, what, at, pc, write};
}

static void fail(const char *sentence) {
    fprintf(stderr, "CLAIM BROKEN in \"%s\", schedule %llu: %s\n", scenario->name,
            (unsigned long long)explored.schedules + 1, sentence);
    for (size_t i = traced > TRACE_MAX ? traced - TRACE_MAX : 0; i < traced; i++)
        print_event(&trace[i % TRACE_MAX]);
    fflush(NULL);
    _Exit(1);
}

void holds(bool condition, const char *format, ...) {
    char sentence[512];
    va_list arguments;
    if (condition)
        return;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof(sentence), format, arguments);
    va_end(arguments);
    fail(sentence);
}

void share(const void *memory, size_t size, void (*describe)(const void *, char *, size_t)) {
    if (region_count == REGIONS_MAX || words + size / 4 + 1 > WORDS_MAX)
        abort();
    regions[region_count++] = (struct region){memory, size, words, describe};
    words += size / 4 + 1;
    lowest = (const uint8_t *)memory < lowest ? memory : lowest;
    highest = (const uint8_t *)memory + size > highest ? (const uint8_t *)memory + size : highest;
}

static inline long word_of(const void *address) {
    const uint8_t *at = address;
    if (at < lowest || at >= highest)
        return -1;
    for (int i = 0; i < region_count; i++)
        if (at >= regions[i].from && at < regions[i].from + regions[i].size)
            return (long)(regions[i].first_word + (size_t)(at - regions[i].from) / 4);
    return -1;
}

static int choose(int of) {
    if (of == 1)
        return 0;
    if (chosen == CHOICES_MAX)
        fail("a schedule of too many choices");
    if (chosen == known)
        choices[known++] = (struct choice){0, (uint16_t)of};
    if (choices[chosen].of != of)
        fail("the scenario is not the same in each run: it must depend on nothing but the schedule");
    return choices[chosen++].taken;
}

/* Stores that others cannot see yet. */

void *__real_memcpy(void *to, const void *from, size_t size);

static uint64_t load_bytes(const uint8_t *at, unsigned size) {
    uint64_t value = 0;
    __real_memcpy(&value, at, size);
    return value;
}

static bool others_touch(const void *address) {
    return touched_by[word_of(address)] & ~(1 << current);
}

static void end_early_load(struct thread *t) {
    if (t->early_at)
        __real_memcpy(t->early_at, &t->early_now, t->early_size);
    t->early_at = NULL;
}

static __attribute__((noinline)) void keep_store(struct thread *t) {
    uint8_t *at = t->writing;
    unsigned size = t->writing_size;
    t->writing = NULL;
    if (!others_touch(at))
        return;
    for (int i = 0; i < t->stores; i++) {
        struct pending *p = &t->pending[i];
        if (p->at == at && p->size == size) {
            p->value = load_bytes(at, size);
            return;
        }
        if (at < p->at + p->size && p->at < at + size) { /* an overlap: what is older is visible now */
            t->stores = 0;
            break;
        }
    }
    if (t->stores == PENDING_MAX)
        fail("too many stores without a barrier");
    t->pending[t->stores++] = (struct pending){at, size, load_bytes(at, size), t->writing_before};
}

/* Nearly all accesses find nothing to be noted. */
static inline void note_store(struct thread *t) {
    if (t->early_at)
        end_early_load(t);
    if (t->writing)
        keep_store(t);
}

static int variants(const struct thread *t) {
    return t->stores == 0 ? 1 : t->stores == 1 ? 2 : 2 + 2 * t->stores;
}

/* Variant 0: all are visible; 1: none; then for each, all but that one, and that one alone. */
static bool is_visible(int variant, int store) {
    if (variant < 2)
        return !variant;
    return (variant & 1) == ((variant - 2) / 2 == store);
}

static void leave(struct thread *t, int variant) {
    int kept = 0;
    for (int i = 0; i < t->stores; i++) {
        struct pending *p = &t->pending[i];
        if (is_visible(variant, i))
            continue;
        __real_memcpy(p->at, &p->before, p->size);
        t->pending[kept++] = *p;
    }
    t->stores = kept;
}

static void enter(struct thread *t) {
    for (int i = 0; i < t->stores; i++) {
        struct pending *p = &t->pending[i];
        p->before = load_bytes(p->at, p->size);
        __real_memcpy(p->at, &p->value, p->size);
    }
}

/* Loads that happen before others which the program has before them. */

#ifdef ROOST_LOADS_IN_ORDER
static const bool reorders = false;
#else
static const bool reorders = true;
#endif

static size_t offset_of(const void *address) {
    const uint8_t *at = address;
    for (int i = 0; i < region_count; i++)
        if (at >= regions[i].from && at < regions[i].from + regions[i].size)
            return regions[i].first_word * 4 + (size_t)(at - regions[i].from);
    return 0;
}

static void keep_view(struct thread *t) {
    if (!reorders)
        return;
    if (t->views == VIEWS_MAX)
        fail("too many views without a barrier");
    struct view *v = &t->view[t->views++];
    v->at = ++now;
    for (int i = 0; i < region_count; i++)
        __real_memcpy(v->bytes + regions[i].first_word * 4, regions[i].from, regions[i].size);
}

/* A barrier: no later load is of a time before it. */
static void forget_views(struct thread *t) {
    t->views = 0;
}

/* The values that a load may have beside the one of now, one for each view that differs from those after it. */
static int early_values(const struct thread *t, const uint8_t *at, unsigned size, int *view) {
    uint64_t last = load_bytes(at, size);
    long word = word_of(at);
    int count = 0;
    for (int i = t->views - 1; i >= 0; i--) {
        uint64_t value = load_bytes(t->view[i].bytes + offset_of(at), size);
        if (t->view[i].at <= seen[current][word] || t->view[i].at <= seen[current][word + (size == 8)])
            break;
        if (value != last)
            view[count++] = i;
        last = value;
    }
    return count;
}

/* A thread is about to load: possibly what was there before it was switched. */
static void load_early(uint8_t *at, unsigned size) {
    struct thread *t = &threads[current];
    int view[VIEWS_MAX];
    int values = early_loads < EARLY_LOADS ? early_values(t, at, size, view) : 0;
    int n = choose(1 + values);
    long word = word_of(at);
    seen[current][word] = seen[current][word + (size == 8)] = n ? t->view[view[n - 1]].at - 1 : now;
    if (!n)
        return;
    early_loads++;
    t->early_at = at;
    t->early_size = size;
    t->early_now = load_bytes(at, size);
    __real_memcpy(at, t->view[view[n - 1]].bytes + offset_of(at), size);
    record("has loaded early:", NULL, false, NULL);
}

static bool is_met(int waiting) {
    int who = current;
    current = waiting;
    bool met = threads[waiting].condition();
    current = who;
    return met;
}

static bool can_run(int i) {
    const struct thread *t = &threads[i];
    return t->state == READY || (t->state == WAITING && is_met(i)) ||
           (t->state == SPINNING && load_bytes(t->failed_at, t->failed_size) != t->failed_value);
}

/* The n-th other thread that can run; -1: there are not that many. */
static int other(int n) {
    for (int i = 0; i < scenario->threads; i++)
        if (i != current && can_run(i) && !n--)
            return i;
    return -1;
}

static int others(void) {
    int n = 0;
    while (other(n) >= 0)
        n++;
    return n;
}

static void go_to(int to) {
    int from = current;
    current = to;
    threads[to].state = READY;
    if (on_switch)
        on_switch(to);
    enter(&threads[to]);
    swapcontext(&threads[from].context, &threads[to].context);
}

static void preempt(int n, const char *why) {
    struct thread *t = &threads[current];
    int per_thread = variants(t), to = other(n / per_thread);
    record(why, NULL, false, NULL);
    keep_view(t);
    leave(t, n % per_thread);
    go_to(to);
}

/* Something is about to happen that others may notice. */
static void point(bool interesting, bool deadly) {
    if (++steps > MAX_STEPS)
        fail("a run without an end");
    int switches = 0;
    if (interesting) {
        explored.points++;
        if (preemptions < scenario->preemptions)
            switches = others() * variants(&threads[current]);
    }
    bool may_die = deadly && scenario->mortal && current == 0 && preemptions < scenario->preemptions;
    int n = choose(1 + switches + may_die);
    if (!n)
        return;
    if (n <= switches) {
        preemptions++;
        preempt(n - 1, "is interrupted");
        return;
    }
    record("is killed", NULL, false, NULL);
    threads[current].stores = 0; /* memory outlives the process: all of them are visible */
    threads[current].state = KILLED;
    if (others())
        go_to(other(choose(others())));
    else
        setcontext(&outside);
}

static void flush_stores(void) {
    threads[current].stores = 0;
}

static __attribute__((noinline)) void touch_word(long word, const void *address, size_t size, bool write, bool early,
                                                 const void *pc) {
    bool shared = false; /* it is a race, as far as is known */
    for (long last = word + (long)((((uintptr_t)address & 3) + size - 1) / 4); word <= last; word++) {
        uint8_t me = (uint8_t)(1 << current), touched = touched_by[word], written = written_by[word];
        touched_by[word] |= me;
        if (write)
            written_by[word] |= me;
        learnt |= touched_by[word] != touched || written_by[word] != written;
        shared |= (write ? touched : written) & ~me;
    }
    point(shared, write);
    if (write && reorders)
        seen[current][word_of(address)] = now;
    if (shared && early && reorders && size <= 8)
        load_early((uint8_t *)(uintptr_t)address, (unsigned)size);
    if (shared || write)
        record(NULL, address, write, pc);
}

/* early: it is a load that may happen before others. */
static inline void touch(const void *address, size_t size, bool write, bool early, const void *pc) {
    if (current < 0)
        return;
    long word = word_of(address);
    note_store(&threads[current]);
    if (word >= 0)
        touch_word(word, address, size, write, early, pc);
}

static inline void visit(const void *address, size_t size, bool write, const void *pc) {
    touch(address, size, write, !write, pc);
}

static void about_to_write(void *address, unsigned size, const void *pc) {
    visit(address, size, true, pc);
    if (current < 0 || word_of(address) < 0)
        return;
    threads[current].writing = address;
    threads[current].writing_size = size;
    threads[current].writing_before = load_bytes(address, size);
}

void step(const char *what) {
    note_store(&threads[current]);
    point(true, true);
    record(what, NULL, false, NULL);
}

void use(const uint32_t *thing, bool change, const char *what) {
    if (current < 0)
        return;
    visit(thing, sizeof(*thing), change, NULL);
    record(what, NULL, false, NULL);
}

void await(bool (*condition)(void), const char *what) {
    struct thread *t = &threads[current];
    note_store(t);
    if (condition()) {
        step(what);
        return;
    }
    t->state = WAITING;
    t->condition = condition;
    t->waits_for = what;
    record(what, NULL, false, NULL);
    int n = others();
    if (!n)
        fail("every thread waits");
    preempt(choose(n * variants(t)), "waits");
}

static void main_of_thread(void) {
    scenario->thread[current]();
    struct thread *t = &threads[current];
    note_store(t);
    flush_stores();
    t->state = DONE;
    record("is done", NULL, false, NULL);
    int n = others();
    if (n)
        go_to(other(choose(n)));
    setcontext(&outside);
}

static bool run_once(void) {
    chosen = traced = 0;
    preemptions = early_loads = 0;
    steps = 0;
    now++;
    current = -1;
    scenario->begin();
    for (int i = 0; i < scenario->threads; i++) {
        struct thread *t = &threads[i];
        if (!t->stack && (!(t->stack = malloc(STACK_SIZE)) || !(t->view = calloc(VIEWS_MAX, sizeof(*t->view)))))
            abort();
        *t = (struct thread){.stack = t->stack, .view = t->view, .state = READY};
        getcontext(&t->context);
        t->context.uc_stack.ss_sp = t->stack;
        t->context.uc_stack.ss_size = STACK_SIZE;
        makecontext(&t->context, main_of_thread, 0);
    }
    volatile bool returned = false;
    getcontext(&outside);
    if (!returned) {
        returned = true;
        current = choose(scenario->threads);
        if (on_switch)
            on_switch(current);
        setcontext(&threads[current].context);
    }
    current = -1;
    bool killed = threads[0].state == KILLED;
    for (int i = 0; i < scenario->threads; i++)
        if (threads[i].state != DONE && threads[i].state != KILLED)
            fail("a thread waits for what never comes");
    scenario->end(killed);
    return killed;
}

static bool next_schedule(void) {
    known = chosen;
    while (known && choices[known - 1].taken + 1 == choices[known - 1].of)
        known--;
    if (!known)
        return false;
    choices[known - 1].taken++;
    return true;
}

struct explored explore(const struct scenario *s) {
    scenario = s;
    memset(touched_by, 0, sizeof(touched_by));
    memset(written_by, 0, sizeof(written_by));
    do { /* until a whole exploration has learnt nothing more of that */
        learnt = false;
        known = 0;
        memset(&explored, 0, sizeof(explored));
        do {
            run_once();
            explored.schedules++;
            if (chosen > explored.longest)
                explored.longest = chosen;
        } while (!learnt && next_schedule());
    } while (learnt);
    return explored;
}

/* What clang's -fsanitize=thread calls. */

#define HERE __builtin_return_address(0)
#define TSAN(result, name, ...)                                                                                        \
    result __tsan_##name(__VA_ARGS__);                                                                                 \
    result __tsan_##name(__VA_ARGS__)

TSAN(void, init, void) {
}
TSAN(void, func_entry, void *pc) {
    (void)pc;
}
TSAN(void, func_exit, void) {
    if (current >= 0)
        end_early_load(&threads[current]);
}

#define ACCESSES(bytes)                                                                                                \
    TSAN(void, read##bytes, void *at) {                                                                                \
        visit(at, bytes, false, HERE);                                                                                 \
    }                                                                                                                  \
    TSAN(void, write##bytes, void *at) {                                                                               \
        about_to_write(at, bytes, HERE);                                                                               \
    }                                                                                                                  \
    TSAN(void, unaligned_read##bytes, void *at) {                                                                      \
        visit(at, bytes, false, HERE);                                                                                 \
    }                                                                                                                  \
    TSAN(void, unaligned_write##bytes, void *at) {                                                                     \
        about_to_write(at, bytes, HERE);                                                                               \
    }                                                                                                                  \
    TSAN(void, volatile_read##bytes, void *at) {                                                                       \
        visit(at, bytes, false, HERE);                                                                                 \
    }                                                                                                                  \
    TSAN(void, volatile_write##bytes, void *at) {                                                                      \
        about_to_write(at, bytes, HERE);                                                                               \
    }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)

TSAN(void, read16, void *at) {
    visit(at, 16, false, HERE);
}
TSAN(void, unaligned_read16, void *at) {
    visit(at, 16, false, HERE);
}

/* A compare-and-exchange that goes on failing is a lock that a thread waits for: until it changes, nothing can come of
 * trying again. A thread that tries a few times and gives up is not stopped. */
static void failed(const void *at, unsigned size) {
    struct thread *t = &threads[current];
    uint64_t value = load_bytes(at, size);
    t->failures = t->failed_at == at && t->failed_value == value ? t->failures + 1 : 1;
    t->failed_at = at;
    t->failed_size = size;
    t->failed_value = value;
    if (t->failures < PATIENCE)
        return;
    t->state = SPINNING;
    int n = others();
    if (!n)
        fail("a lock that nobody lets go of");
    preempt(choose(n * variants(t)), "waits for the lock");
    t->failures = 0;
}

/* Orders, as the compiler numbers them. Those from release on let every earlier store become visible first. */
enum {
    RELAXED,
    CONSUME,
    ACQUIRE,
    RELEASE,
    ACQUIRE_RELEASE,
    SEQUENTIAL
};

static void atomic_access(const void *at, size_t size, bool write, int order, const void *pc) {
    touch(at, size, write, !write && order == RELAXED, pc);
    if (current < 0)
        return;
    if (order >= RELEASE)
        flush_stores();
    if (order != RELAXED && order != RELEASE)
        forget_views(&threads[current]);
}

#define READ_MODIFY_WRITE(bits, type, name, builtin)                                                                   \
    TSAN(type, atomic##bits##_##name, type *at, type value, int order) {                                               \
        atomic_access(at, sizeof(type), value != 0, order, HERE);                                                      \
        return builtin(at, value, __ATOMIC_SEQ_CST);                                                                   \
    }
#define ATOMICS(bits, type)                                                                                            \
    TSAN(type, atomic##bits##_load, const type *at, int order) {                                                       \
        atomic_access(at, sizeof(type), false, order == SEQUENTIAL ? ACQUIRE : order, HERE);                           \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                                  \
    }                                                                                                                  \
    TSAN(void, atomic##bits##_store, type *at, type value, int order) {                                                \
        if (order == RELAXED) {                                                                                        \
            about_to_write(at, sizeof(type), HERE);                                                                    \
        } else {                                                                                                       \
            atomic_access(at, sizeof(type), true, RELEASE, HERE); /* later loads do not wait for a store */            \
        }                                                                                                              \
        __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                                 \
    }                                                                                                                  \
    TSAN(type, atomic##bits##_exchange, type *at, type value, int order) {                                             \
        atomic_access(at, sizeof(type), true, order, HERE);                                                            \
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                                       \
    }                                                                                                                  \
    TSAN(int, atomic##bits##_compare_exchange_strong, type *at, type *expected, type value, int order, int failure) {  \
        (void)failure;                                                                                                 \
        atomic_access(at, sizeof(type), true, order, HERE);                                                            \
        int done = __atomic_compare_exchange_n(at, expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);            \
        if (!done && current >= 0)                                                                                     \
            failed(at, sizeof(type));                                                                                  \
        return done;                                                                                                   \
    }                                                                                                                  \
    TSAN(type, atomic##bits##_compare_exchange_val, type *at, type expected, type value, int order, int failure) {     \
        (void)failure;                                                                                                 \
        atomic_access(at, sizeof(type), true, order, HERE);                                                            \
        if (!__atomic_compare_exchange_n(at, &expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) && current >= 0) \
            failed(at, sizeof(type));                                                                                  \
        return expected;                                                                                               \
    }                                                                                                                  \
    READ_MODIFY_WRITE(bits, type, fetch_add, __atomic_fetch_add)                                                       \
    READ_MODIFY_WRITE(bits, type, fetch_sub, __atomic_fetch_sub)                                                       \
    READ_MODIFY_WRITE(bits, type, fetch_or, __atomic_fetch_or)                                                         \
    READ_MODIFY_WRITE(bits, type, fetch_xor, __atomic_fetch_xor)                                                       \
    TSAN(type, atomic##bits##_fetch_and, type *at, type value, int order) {                                            \
        atomic_access(at, sizeof(type), true, order, HERE);                                                            \
        return __atomic_fetch_and(at, value, __ATOMIC_SEQ_CST);                                                        \
    }
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

TSAN(void, atomic_thread_fence, int order) {
    if (current < 0)
        return;
    note_store(&threads[current]);
    if (order >= RELEASE)
        flush_stores();
    if (order != RELEASE)
        forget_views(&threads[current]);
}
TSAN(void, atomic_signal_fence, int order) {
    (void)order;
}

/* Copies of the code under test (the linker's --wrap): word by word, as a processor may do them. */

void *__real_memset(void *to, int value, size_t size);
int __real_memcmp(const void *a, const void *b, size_t size);

static size_t to_next_word(const void *at, size_t left) {
    size_t size = 4 - ((uintptr_t)at & 3);
    return size < left ? size : left;
}

static void *copy(uint8_t *to, const uint8_t *from, size_t size, const void *pc) {
    if (current < 0 || (word_of(to) < 0 && word_of(from) < 0))
        return __real_memcpy(to, from, size);
    for (size_t done = 0, piece; done < size; done += piece) {
        piece = to_next_word(word_of(to) >= 0 ? to + done : from + done, size - done);
        visit(from + done, piece, false, pc);
        uint32_t word = 0;
        __real_memcpy(&word, from + done, piece);
        about_to_write(to + done, (unsigned)piece, pc);
        __real_memcpy(to + done, &word, piece);
    }
    return to;
}

static void *fill(uint8_t *to, int value, size_t size, const void *pc) {
    if (current < 0 || word_of(to) < 0)
        return __real_memset(to, value, size);
    for (size_t done = 0, piece; done < size; done += piece) {
        piece = to_next_word(to + done, size - done);
        about_to_write(to + done, (unsigned)piece, pc);
        __real_memset(to + done, value, piece);
    }
    return to;
}

void *__wrap_memcpy(void *to, const void *from, size_t size);
void *__wrap_memcpy(void *to, const void *from, size_t size) {
    return copy(to, from, size, HERE);
}

void *__wrap_memset(void *to, int value, size_t size);
void *__wrap_memset(void *to, int value, size_t size) {
    return fill(to, value, size, HERE);
}

int __wrap_memcmp(const void *a, const void *b, size_t size);
int __wrap_memcmp(const void *a, const void *b, size_t size) {
    if (current >= 0 && word_of(a) >= 0)
        visit(a, size, false, HERE);
    return __real_memcmp(a, b, size);
}

TSAN(void *, memcpy, void *to, const void *from, size_t size) { /* clang 15 and later */
    return copy(to, from, size, HERE);
}
TSAN(void *, memset, void *to, int value, size_t size) {
    return fill(to, value, size, HERE);
}
