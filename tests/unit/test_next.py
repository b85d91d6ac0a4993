# SPDX-License-Identifier: Apache-2.0
"""What happens next to an awake connection (cext/conn/next.c): claims about the table, over every set of facts."""

from __future__ import annotations

from tests.inner import lib

ALL = range(lib.ROOST_FACTS)


def test_nothing_happens_while_a_freeze_or_a_thaw_has_the_sockets() -> None:
    assert {facts for facts in ALL if lib.roost_next(facts) == lib.ROOST_NEXT_WAIT} == {
        facts for facts in ALL if not facts & lib.ROOST_LIVES
    }


def test_what_must_close_closes_before_all_else() -> None:
    must = lib.ROOST_LIVES | lib.ROOST_MUST_CLOSE
    assert {facts for facts in ALL if lib.roost_next(facts) == lib.ROOST_NEXT_CLOSE} == {
        facts for facts in ALL if facts & must == must
    }


def test_a_link_is_used_and_waited_for_before_another_is_made() -> None:
    for facts in ALL:
        if facts & (lib.ROOST_HAS_LINK | lib.ROOST_CONNECTS):
            assert lib.roost_next(facts) not in (lib.ROOST_NEXT_ATTACH, lib.ROOST_NEXT_LINK, lib.ROOST_NEXT_FREEZE)


def test_a_server_that_waits_comes_before_one_of_the_services() -> None:
    for facts in ALL:
        if facts & lib.ROOST_SERVER_WAITS:
            assert lib.roost_next(facts) not in (lib.ROOST_NEXT_LINK, lib.ROOST_NEXT_FREEZE, lib.ROOST_NEXT_STAND)


def test_a_server_is_linked_only_where_one_waits() -> None:
    for facts in ALL:
        if lib.roost_next(facts) == lib.ROOST_NEXT_ATTACH:
            assert facts & lib.ROOST_SERVER_WAITS


def test_a_freeze_begins_only_where_it_was_asked_for_and_without_a_link() -> None:
    for facts in ALL:
        if lib.roost_next(facts) == lib.ROOST_NEXT_FREEZE:
            assert facts & lib.ROOST_MUST_FREEZE
            assert not facts & (lib.ROOST_HAS_LINK | lib.ROOST_CONNECTS | lib.ROOST_SERVER_WAITS)


def test_bytes_that_wait_get_a_server_before_their_end_is_told() -> None:
    for facts in ALL:
        if facts & lib.ROOST_BYTES_WAIT:
            assert lib.roost_next(facts) not in (lib.ROOST_NEXT_END, lib.ROOST_NEXT_STAND)


def test_what_there_is_to_read_is_looked_at_before_a_connection_stands_by() -> None:
    for facts in ALL:
        if lib.roost_next(facts) == lib.ROOST_NEXT_STAND:
            assert facts | lib.ROOST_MUST_ANSWER == lib.ROOST_LIVES | lib.ROOST_MUST_ANSWER
        if lib.roost_next(facts) == lib.ROOST_NEXT_PEEK:
            assert facts & lib.ROOST_CLIENT_READABLE


def test_each_step_has_facts_that_lead_to_it() -> None:
    assert {lib.roost_next(facts) for facts in ALL} == set(range(lib.ROOST_NEXT_WAIT, lib.ROOST_NEXT_STAND + 1))


def test_a_server_has_a_client_that_must_answer_only_once_it_has_spoken() -> None:
    unanswered = lib.ROOST_LIVES | lib.ROOST_SERVER_WAITS | lib.ROOST_MUST_ANSWER
    for facts in ALL:
        if facts & unanswered == unanswered and not facts & lib.ROOST_BYTES_WAIT:
            assert lib.roost_next(facts) != lib.ROOST_NEXT_ATTACH
    assert lib.roost_next(unanswered) == lib.ROOST_NEXT_ASK
    assert lib.roost_next(unanswered | lib.ROOST_BYTES_WAIT) == lib.ROOST_NEXT_ATTACH
    assert lib.roost_next(unanswered | lib.ROOST_CLIENT_ENDED) == lib.ROOST_NEXT_END
