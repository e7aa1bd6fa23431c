from __future__ import annotations

from chockstone.engine import token_rates
from chockstone.engine.token_rates import WINDOW_SECONDS, TokenRates


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_rate_is_the_mean_of_the_last_minute() -> None:
    clock = Clock()
    rates = TokenRates(monotonic=clock)
    clock.now += 300
    rates.count("trained", "ann", 600)
    clock.now += 30
    rates.count("trained", "ann", 300)
    rates.count("trained", "bob", 300)
    rates.count("sampled", "ann", 60)

    assert rates.per_second("trained") == 1200 / WINDOW_SECONDS
    assert rates.per_second("trained", "ann") == 900 / WINDOW_SECONDS
    assert rates.per_second("sampled", "bob") == 0

    clock.now += 31

    assert rates.per_second("trained") == 600 / WINDOW_SECONDS


def test_a_server_that_has_just_started_divides_by_its_age() -> None:
    clock = Clock()
    rates = TokenRates(monotonic=clock)
    clock.now += 10
    rates.count("trained", "ann", 50)

    assert rates.per_second("trained") == 5


def test_it_holds_no_more_than_its_bounds() -> None:
    clock = Clock()
    rates = TokenRates(monotonic=clock)
    for number in range(token_rates._USERS + 50):
        rates.count("trained", f"user-{number}", 1)
    for _ in range(200):
        clock.now += 1
        rates.count("sampled", "ann", 1)

    assert len(rates._buckets) <= WINDOW_SECONDS
    assert rates.per_second("sampled") == 1

    for number in range(token_rates._USERS + 50):
        rates.count("trained", f"user-{number}", 1)

    assert len(rates._buckets[-1][1]) <= token_rates._USERS + 2, "further users are counted together"
    assert rates.per_second("trained") == (token_rates._USERS + 50) / WINDOW_SECONDS
