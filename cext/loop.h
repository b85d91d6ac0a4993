/* SPDX-License-Identifier: Apache-2.0 */
/* What the files on top have for each other: engine.c (the loop and the face) and commands.c. */
#ifndef ROOST_CEXT_LOOP_H
#define ROOST_CEXT_LOOP_H

#include "cext/life/life.h"

void roost_commands_turn(struct roost_engine *e);
/* struct roost_engine.resume */
void roost_command_resume(struct roost_engine *e, struct roost_waiting *w);
void roost_conns_free_dead(struct roost_engine *e); /* at the end of a turn */

#endif
