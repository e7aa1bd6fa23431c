from __future__ import annotations

from dataclasses import dataclass

from chockstone.api.admission.connections import Connections


@dataclass(eq=False)
class Connection:
    is_busy: bool = False
    is_aborted: bool = False

    def abort(self) -> None:
        self.is_aborted = True


def entered(connections: Connections, count: int, *, is_busy: bool = False) -> list[Connection]:
    made = [Connection(is_busy) for _ in range(count)]
    for each in made:
        connections.enter(each)
    return made


def test_the_oldest_idle_stranger_gives_way() -> None:
    connections = Connections(4)
    busy, idle = entered(connections, 2, is_busy=True), entered(connections, 2)

    [last] = entered(connections, 1)

    assert [each.is_aborted for each in (*busy, *idle, last)] == [False, False, True, False, False]
    connections.leave(idle[0])
    assert connections.count == 4


def test_where_all_strangers_are_busy_the_oldest_gives_way_and_the_newcomer_stays() -> None:
    connections = Connections(3)
    busy = entered(connections, 3, is_busy=True)

    [last] = entered(connections, 1)

    assert [each.is_aborted for each in (*busy, last)] == [True, False, False, False]


def test_a_connection_with_a_valid_credential_does_not_give_way() -> None:
    connections = Connections(2)
    known = entered(connections, 2)
    for each in known:
        connections.recognize(each)

    [stranger] = entered(connections, 1)

    assert stranger.is_aborted
    assert not any(each.is_aborted for each in known)
