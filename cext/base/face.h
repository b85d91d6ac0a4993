/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C face of the engine: all that Python may call, and nothing else (cext/build_engine.py hands this file and
 * base/types.h to cffi; appliance/engine/ is its only importer). Keep it to plain declarations that cffi can parse.
 *
 * One engine thread owns every socket, the timers and the table. Python puts batches of commands in and takes batches
 * of events out; both calls release the GIL. Python never sees a byte of payload.
 *
 * Transitions. The engine carries transitions out and reports each with ONE event of type ROOST_EV_TRANSITION (from,
 * to, cause: the numbers of control/core/states.py). Some it makes by itself (client-connect, client-data, client-close,
 * server-close, probe-timeout, server-attach); the rest it makes when commanded. A command that could not be carried out
 * is answered with ROOST_EV_REFUSED carrying the command's token, op and an error.
 */
#ifndef ROOST_CEXT_FACE_H
#define ROOST_CEXT_FACE_H

#include "cext/base/types.h"

typedef struct roost_engine roost_engine;
typedef struct roost_listing roost_listing;
typedef struct roost_bridge roost_bridge;

/* All return 0 or a count, or -errno with a sentence for people in why. */
roost_engine *roost_open(const struct roost_options *options, struct roost_reason *why);
/* Hears inactive connections on an interface. servers: the servers' legs of persistent services, not clients. Returns 1
 * native, 2 generic, 3 the loopback interface: servers on this machine. */
int roost_attach(roost_engine *e, const char *ifname, const char *mode /* auto native generic */, int servers,
                 struct roost_reason *why);
/* Frames that come by this interface with a tag of this protocol (0x8100, 0x88a8) and id are that device's from now on, 0: none's;
 * XDP looks into those of such VLANs, and of the interface itself, alone. Any thread's; 0 or -errno. */
int roost_vlan(roost_engine *e, uint32_t ifindex, uint16_t protocol, uint16_t id, uint32_t device);
/* Makes this machine answer for others (once, before transparent services are added): steering programs, and the doors
 * through which servers that connect to a client's address come in. wait_ms: how long a server waits for a client that is
 * not connected, before it is reset; dial_ms: or so long, until ROOST_EV_WANTED is answered; 0: it is not told. */
int roost_router_open(roost_engine *e, uint32_t wait_ms, uint32_t dial_ms, struct roost_reason *why);
/* Steers what arrives on an interface. servers: SYNs for clients come from there. */
int roost_router_attach(roost_engine *e, const char *ifname, int servers, struct roost_reason *why);
/* A port at which servers reach clients by address alone, whichever port the client's connection has. */
int roost_router_attach_port(roost_engine *e, uint16_t port);
uint32_t roost_router_mark(uint32_t *mask); /* of packets that a routing rule must deliver to this machine */
/* Programs of this network namespace, in this cgroup (version 2) and those below, reach clients from now on when they connect to
 * a client's address and port. Once, after roost_attach to the loopback interface, and for servers. */
int roost_local_connect_open(roost_engine *e, const char *cgroup, struct roost_reason *why);
/* Where clients connect to: count places, at most 256, of 20 bytes each: address, port in network order, two zeros. All there
 * are, in place of those from before. Any thread's; 0 or -errno. */
int roost_local_connect_at(roost_engine *e, const uint8_t *places, uint32_t count);
/* One that was closed begins again, with all of these values. */
int roost_service_add(roost_engine *e, const struct roost_service *service, struct roost_reason *why);
/* No new clients from now on; those that it has, awake or asleep, are served as before. A router routes new ones to their
 * server, also with fail_closed (which resets those that were routed, once it begins again). -ENOENT: no such service; -EAGAIN: clients that have connected could not be taken in now, and would be reset. */
int roost_service_close(roost_engine *e, uint16_t service);
/* All but listen, transparent and as_client; every connection of the service obeys within two seconds. -ENOENT: no such
 * service; -ENOSPC: of the servers that left it too many still have links. */
int roost_service_update(roost_engine *e, const struct roost_service *service);
/* in_use[n]: 1, where a connection may be in group n. */
void roost_groups_in_use(roost_engine *e, uint8_t in_use[256]);
/* All rules there are, from now on, in place of those from before, with the policies that they name: `service` says whose each is,
 * `own` and `base` are the engine's. Every connection obeys within seconds. By one caller at a time; it waits for what is in XDP,
 * some 30 ms. How many networks XDP had no memory for: clients that are born asleep there have the service's default until rules
 * are set again; class says the number of each policy. -EINVAL, -ENOSPC or -ENOMEM: nothing has changed. */
int roost_rules_set(roost_engine *e, const struct roost_rule *rules, uint32_t count, const struct roost_class *policies,
                    uint32_t policies_count, uint32_t *class, struct roost_reason *why);
/* What they would change: of each policy, and behind them of those that no rule is for, two numbers in counts: the connections
 * that would have it, awake or with a slot, and those of them that have other values now. Takes 0.3 us a connection. */
int roost_rules_count(roost_engine *e, const struct roost_rule *rules, uint32_t count,
                      const struct roost_class *policies, uint32_t policies_count, uint64_t *counts,
                      struct roost_reason *why);
/* A server is up (or down): from now on links go there (or not); links that are there go on. -ENOENT: no such server. */
int roost_server_mark(roost_engine *e, uint16_t service, const struct roost_server *server, int up);
/* Fills status; how many it filled, at most max (ROOST_PLACES: all). -ENOENT: no such service. */
int roost_servers_read(roost_engine *e, uint16_t service, struct roost_server_status *status, uint32_t max);
void roost_stop_listening(roost_engine *e); /* no new clients from now on; those in the listen queues are reset */
/* What sleeps stays asleep from now on: its packets are dropped, and their senders say them again. For the end of a daemon: a
 * client that wakes then could not be frozen in time. */
void roost_wake_none(roost_engine *e);
/* Limits by source from now on; those of services come with them. Any thread's. */
void roost_limits_set(roost_engine *e, const struct roost_bounds *bounds);
/* Whether an attach (0), or the first word of an agent (1), from this address is within its limits; it is counted. Any thread's. */
int roost_limits_take(roost_engine *e, uint32_t what, const uint8_t address[16]);
/* The last source that was refused, of each limit (enum roost_limited): the upper half of an IPv6 address, or 0xffff and an IPv4
 * one, network order; 0: none was. */
void roost_limits_last(roost_engine *e, uint64_t last[6]);
/* Local ports of links to the servers of persistent services, which the kernel must not give away (before roost_start;
 * 10240 to 32767 otherwise, below what it gives by itself). */
int roost_link_ports(roost_engine *e, uint16_t first, uint16_t last);
/* Keeps one from new links (before roost_start): after a reboot it is that of a leg which is about to be put back. */
int roost_link_port_reserve(roost_engine *e, uint16_t port);
void roost_link_ports_unreserve(roost_engine *e); /* all of them */
/* Begins a connection to a client, as if it had connected to the service, from there; server: who wants it, for a service that
 * answers for every server. The descriptor, the caller's (for ROOST_OP_ADOPT when it is connected), and its key; -EEXIST: this
 * very connection is there, or may be asleep without a slot; -ENOENT: no such service; or -errno. Any thread's. */
int roost_dial_client(roost_engine *e, uint16_t service, const struct roost_server *client, const uint8_t server[16],
                      struct roost_key *key);
int roost_start(roost_engine *e, struct roost_reason *why);
int roost_submit(roost_engine *e, const struct roost_command *commands, uint32_t count);
/* The same command with the same token for many connections, by number or by key: the other is NULL. */
int roost_submit_many(roost_engine *e, uint8_t op, uint8_t cause, uint64_t token, const uint64_t *ids,
                      const struct roost_key *keys, uint32_t count);
/* Waits up to timeout_ms for an event, and then up to patience_ms for more, unless a caller waits for one of them: the
 * answer to a command with a token, a record that is needed, a refusal, pressure. */
int roost_events(roost_engine *e, struct roost_event *events, uint32_t max, uint32_t timeout_ms, uint32_t patience_ms);
/* The rows of the ROOST_EV_ROWS that roost_events gave last, in their order: at most max, and how many. To be taken
 * before roost_events is called again. */
int roost_rows(roost_engine *e, struct roost_row *rows, uint32_t max);
int roost_wake_events(roost_engine *e); /* make a waiting roost_events return */
/* What exists, in parts; what sleeps without a slot is not among them. Each that is there from the first part to the last
 * comes once, whatever wakes and falls asleep meanwhile, unless a table grows just then or a million others came or moved.
 * sought: NULL, all but born ones; the result NULL: no memory. state in events[].to_state; id 0 for SLEEP (the
 * store knows it); gap_ms since the last payload byte. A part may be empty, and is not the last one until the list is
 * done. */
roost_listing *roost_list_begin(roost_engine *e, const struct roost_sought *sought);
int roost_list(roost_engine *e, roost_listing *l, struct roost_event *events, uint32_t max);
int roost_list_done(const roost_listing *l);
/* How many positions of awake connections and slots it has looked at. A listing that begins there has those behind it: of
 * what moves between the two, some may come twice, or not at all. */
uint64_t roost_list_at(const roost_listing *l);
void roost_list_end(roost_engine *e, roost_listing *l); /* roost_close ends those that are left */
/* Of rows of an earlier boot. ms: how far this boot's CLOCK_MONOTONIC is ahead of theirs (mostly behind); timestamps_ms: the same
 * of the clock of TSvals. */
struct roost_clock {
    uint64_t number;
    int64_t ms, timestamps_ms;
};
/* Puts count connections whose rows are of earlier boots back into the table, in SLEEP: keys, kas (roost_ka, service and two bytes),
 * numbers and clocks of their rows. known: these clocks, by ascending numbers. Of how many it says something in errors: 0 it is in
 * the table; EEXIST: another connection has the 4-tuple; EOPNOTSUPP: one leg of a pair, which ROOST_OP_INSERT puts
 * back; ESTALE: its clock is not among these, or it may need no slot, and it is left alone. Fewer than count: the table is full, or
 * about to grow. Any thread's. Before roost_start, in a standby's table, a row takes the place of the slot that an earlier row of
 * its 4-tuple has. */
uint32_t roost_put_back(roost_engine *e, const struct roost_key *keys, const uint8_t *kas, const uint64_t *ids,
                        const uint64_t *clocks, uint32_t count, const struct roost_clock *known, uint32_t known_count,
                        uint8_t *errors);
/* Before roost_start, in a standby's table: removes the slots of all connections but these, whose numbers ascend; how many. */
uint32_t roost_retain(roost_engine *e, const uint64_t *ids, uint32_t count);
/* Before roost_start: numbers that are given from now on begin here, unless they are beyond it. */
void roost_next_number(roost_engine *e, uint64_t number);
/* This machine has the connections until then, ms of CLOCK_BOOTTIME; 0, as in the beginning: for ever. Afterwards it wakes none
 * and probes none: another machine may have taken them over. Any thread's. */
void roost_lease(roost_engine *e, uint64_t until_ms);
/* Before roost_start: SYN cookies have this secret, and they and the TSvals of births are of a clock that is ahead of
 * CLOCK_MONOTONIC by ahead_ms: so another machine, with the same of both, ends handshakes that this one began. */
void roost_share_cookies(roost_engine *e, uint64_t secret0, uint64_t secret1, uint64_t ahead_ms);
/* How many slots are in SLEEP, of clients. Takes as long as a look at every slot: for when nothing moves. */
uint64_t roost_slots_in_sleep(roost_engine *e);
/* The connections of these keys as they stand: how many it filled, one behind the other, and for each key whether it is
 * among them. count of an event: 1 when it may be asleep without a slot; that, its row alone can tell. */
uint32_t roost_find(roost_engine *e, const struct roost_key *keys, uint32_t count, struct roost_event *events,
                    uint8_t *found);
/* The states of many at once, of whose rows these are the keys and numbers, a byte each: 0 there is none, or another one
 * has this key; ROOST_CANDIDATE added where its row alone can tell. */
void roost_states(roost_engine *e, const struct roost_key *keys, const uint64_t *ids, uint32_t count, uint8_t *states);
/* The same for the connections of a client address and port, whatever services they came in by: those that are known in
 * the order of their services, 64 at most, and behind them each 4-tuple that may be asleep without a slot, whose row tells. locals:
 * count addresses that services of every local address listen on. one: the first that is known is enough. How many events
 * it filled, at most max. */
uint32_t roost_find_client(roost_engine *e, const uint8_t client[16], uint16_t port, const uint8_t *locals,
                           uint32_t count, int one, struct roost_event *events, uint32_t max);
/* The server's leg of an inactive pair, by its client's key; 1 found, 0 not. */
int roost_find_peer(roost_engine *e, const struct roost_key *key, struct roost_record *record);
/* The policy in force for a connection, by its key; of one that has neither socket nor slot, its service's: 1 found, 0: there
 * is no such service either. */
int roost_find_class(roost_engine *e, const struct roost_key *key, struct roost_class *class);
/* What a connection set in band, by its key and number, whatever its state; 1 found, 0: nothing. */
int roost_find_overrides(roost_engine *e, const struct roost_key *key, uint64_t id, struct roost_overrides *overrides);
/* What keeps the awake connection with this key from being frozen; 1 found, 0: there is none. */
int roost_find_obstacles(roost_engine *e, const struct roost_key *key, struct roost_obstacles *obstacles);
/* Takes all tallies there are, ROOST_TALLIES at most; how many. */
int roost_tallies_take(roost_engine *e, struct roost_tally *tallies);
/* Of each class of which there is any: how many, at most ROOST_SILENCE_COUNTS. */
int roost_silences_read(roost_engine *e, struct roost_silence_counts *counts);
/* Adds a part of what exists to counts, which has a place for each class (ROOST_CLASSES); at: two words, which begin with 0. 1:
 * there is more, 0: that was all. What moves between the parts may be counted twice, or not at all. -EAGAIN: a table has grown
 * meanwhile, begin anew. The engine's thread stands still for 0.2 ms: between two parts it needs time. */
int roost_census(roost_engine *e, uint64_t *at, struct roost_census *counts);
int roost_stats_read(roost_engine *e, struct roost_stats *stats);
const char *roost_stat_name(uint32_t index); /* NULL past the last one */
int roost_stat_is_gauge(uint32_t index);     /* 1: it tells how much there is; 0: it counts what happened */
uint64_t roost_memory(roost_engine *e);      /* bytes of kernel memory in our maps (as bpf fdinfo says) */
void roost_stop(roost_engine *e);            /* stop the thread; what is open stays so until roost_close */
/* A hand-over to the next daemon: awake connections and listening sockets with the bytes that are on their way, out of one
 * engine, through a SOCK_SEQPACKET socketpair, into another. Meanwhile a bridge has them. NULL: no memory. */
roost_bridge *roost_bridge_open(void);
int roost_bridge_start(roost_bridge *b); /* a thread moves their bytes until roost_bridge_stop. 0 or -errno */
void roost_bridge_stop(roost_bridge *b);
/* All that waits in the queue of this socket: how many came, or -errno. refused: is raised by what was of no use. */
int roost_bridge_receive(roost_bridge *b, int from, uint32_t *refused);
int roost_bridge_send(roost_bridge *b,
                      int to); /* how many went, and are not here any more; or -errno, and the rest is */
uint32_t roost_bridge_count(const roost_bridge *b, int kind); /* enum roost_handed_kind */
void roost_bridge_close(roost_bridge *b);                     /* what is left there ends */
/* After roost_stop: what a bridge can have of this engine; how many connections. What is being frozen or thawed, and what the
 * daemon itself is the server of, stays, and so does what there is no memory for. */
int roost_hand_over(roost_engine *e, roost_bridge *b);
/* The other way: services that are added from now on listen at the sockets that were handed over; then, with services and rules
 * told, the connections are this engine's, how many, while the bridge moves their bytes until roost_start. It must last until
 * then, and keeps what is not wanted. */
void roost_inherit(roost_engine *e, roost_bridge *b);
int roost_inherit_connections(roost_engine *e);
/* Makes the directory for pins, or looks whether one that is there may be trusted. */
int roost_pin_dir(const char *pin_dir, struct roost_reason *why);
/* Detaches and removes everything pinned there, in the network namespace that it belongs to. */
int roost_unpin(const char *pin_dir, struct roost_reason *why);
/* Says in why whose XDP program keeps ours, pinned below pin_dir, from an interface: -EBUSY; 0: none does. */
int roost_foreign_xdp(const char *ifname, const char *pin_dir, struct roost_reason *why);
/* Moves this thread into that namespace for good: 1 it is there; 0: that namespace is gone, with all that was in it. */
int roost_enter_namespace(const char *pin_dir, struct roost_reason *why);
/* Frees it. Pinned objects stay; when it was never started, those that an earlier one made. */
void roost_close(roost_engine *e);

#endif
