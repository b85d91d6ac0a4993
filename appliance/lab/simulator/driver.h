/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver of the client simulator (simulator.bpf.c): loads it onto an interface, sets clients going at a rate,
 * asks again for what was not answered in time, and reads what became of it.
 *
 * Calls that send must be made by a thread that is in the interface's network namespace. A phase may be stepped by one
 * thread while another steps a phase of another kind, and the rest may be called from anywhere.
 */
#ifndef ROOST_CEXT_SIMULATOR_H
#define ROOST_CEXT_SIMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reflector.h"
#include "simulator.h"

struct simulator;

struct sim_phase {   /* what is to be done, then how far it is */
    uint32_t action; /* SIM_CONNECT, SIM_PROBE, SIM_SAY, SIM_FINISH or SIM_ABORT */
    uint32_t first, count;
    const uint32_t *list; /* count clients; NULL = first, first + 1, ... */
    uint32_t say, answer; /* SIM_SAY: bytes */
    double rate;          /* clients a second, 0 = as fast as they go */
    uint32_t in_flight;   /* at most so many are waited for at a time */
    uint32_t rto_ms;      /* until the first retransmission; the next ones take twice as long each */
    uint32_t tries;       /* retransmissions before a client is given up */
    /* results */
    uint64_t begun, done, refused, cut, lost, skipped, retransmitted;
    uint64_t elapsed_ns, cpu_ns; /* cpu_ns: of the threads that stepped */
    /* the driver's own */
    uint32_t offered, swept;
    uint64_t began_ns, sweep_due_ns, base[SIM_SETTLING], base_retransmitted;
};

/* object: path of the compiled BPF program. NULL with a sentence in err. */
struct simulator *sim_open(const char *object, const struct sim_config *config, char *err, size_t err_len);
void sim_close(struct simulator *s);
struct sim_config *sim_settings(const struct simulator *s); /* those in force: drop_every and below may be changed */

void sim_phase_begin(struct simulator *s, struct sim_phase *phase);
/* Goes on for up to slice_ms. 1 finished, 0 not yet, or -errno. */
int sim_phase_step(struct simulator *s, struct sim_phase *phase, uint32_t slice_ms);
/* Sends again what is due of all clients, whichever phase it is from. Retransmissions, or -errno. */
int64_t sim_tend(struct simulator *s, uint32_t rto_ms, uint32_t tries);
/* Sends spoofed frames (SIM_SPOOF_*) in the names of count clients from first on, each in turn, beginning with first + at;
 * for ms, at most rate a second unless that is 0. The frames, or -errno. */
int64_t sim_spoof(struct simulator *s, uint32_t action, uint32_t first, uint32_t count, uint32_t at, double rate,
                  uint32_t ms);

void sim_count(const struct simulator *s, uint64_t *counters /* SIM_COUNTERS */);
void sim_census(const struct simulator *s, uint32_t from, uint32_t count, uint64_t *states /* SIM_STATES */);
void sim_client_at(const struct simulator *s, uint32_t index, struct sim_client *client);
bool sim_offence_of(const struct simulator *s, uint32_t counter /* >= SIM_FIRST_OFFENCE */,
                    struct sim_offence *offence);
void sim_forget_offences(struct simulator *s); /* the frames, and their counters */
uint32_t sim_tsval(const struct simulator *s, uint32_t index, uint32_t ms);
void sim_pattern(const struct simulator *s, uint32_t index, uint32_t position, uint8_t *bytes, uint32_t count);

/* A bare reflector on an interface (reflector.bpf.c), for a thread that is in its namespace. NULL with a sentence
 * in err. */
struct reflector;
struct reflector *reflector_open(const char *object, uint32_t ifindex, uint32_t lines, char *err, size_t err_len);
void reflector_set_fault(struct reflector *r, uint32_t fault);
void reflector_close(struct reflector *r);

#endif
