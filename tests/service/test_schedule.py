"""Slots against a brute-force oracle over every minute, and what is due after every history of runs."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dataprep.service.job import Job, Retries
from dataprep.service.schedule import Due, check_cron, due, latest_slot, next_slots, retry_at, wait

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def job(schedule, zone="UTC", **retries):
    return Job(corpus=("x",), tokenizer="x", output="x", schedule=schedule, time_zone=zone, retries=Retries(**retries))


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# --- slots

# A night in each in which the clock changes: by an hour, by half an hour, by two, at midnight, both ways.
NIGHTS = [
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("Australia/Lord_Howe", "2026-04-04"),
    ("Australia/Lord_Howe", "2026-10-03"),
    ("Antarctica/Troll", "2026-03-29"),
    ("Antarctica/Troll", "2026-10-25"),
    ("America/Havana", "2026-03-08"),
    ("America/Havana", "2026-11-01"),
    ("America/Santiago", "2026-04-05"),
    ("America/Santiago", "2026-09-06"),
    ("Asia/Kolkata", "2026-02-28"),
    ("UTC", "2024-02-29"),
]
BEFORE, AFTER = 1, 2


def numbers(field, first, last):
    """What a field of cron stands for, as its manual says."""
    found = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = (f"{first}-{last}" if span == "*" else span).partition("-")
        high = high or (str(last) if step else low)
        found |= set(range(int(low), int(high) + 1, int(step or 1)))
    return found


def matcher(cron):
    fields = cron.split()
    minutes, hours, days, months, weekdays = (
        numbers(field, *span) for field, span in zip(fields, [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)], strict=True)
    )
    weekdays = {each % 7 for each in weekdays}
    both = fields[2].startswith("*") or fields[4].startswith("*")

    def matches(local):
        is_day, is_weekday = local.day in days, local.isoweekday() % 7 in weekdays
        return (
            local.minute in minutes
            and local.hour in hours
            and local.month in months
            and (is_day and is_weekday if both else is_day or is_weekday)
        )

    return matches


@functools.cache
def minutes_of(zone, day):
    """Every minute of the days around a night, what a clock shows then, whether again, and what it has skipped."""
    first = at(f"{day}T00:00:00") - BEFORE * DAY
    shown, found = None, []
    for i in range(-1, (BEFORE + AFTER) * 24 * 60 + 1):
        moment = first + i * MINUTE
        local = moment.astimezone(ZoneInfo(zone))
        naive = local.replace(tzinfo=None)
        gap = 0 if shown is None else (naive - shown) // MINUTE
        found.append((moment, naive, local.fold == 1, [shown + k * MINUTE for k in range(1, gap)]))
        shown = naive
    return found[1:]


def brute_force(cron, night):
    """The slots around a night: every minute is looked at, and what its clock shows."""
    matches, both = matcher(cron), cron.split()[1].startswith("*")
    return [
        moment
        for moment, shown, again, skipped in minutes_of(*night)
        if (matches(shown) and (both or not again)) or any(map(matches, skipped))
    ]


def fields(first, last):
    one = st.integers(first, last)
    span = st.tuples(one, one).map(lambda pair: f"{min(pair)}-{max(pair)}")
    return st.one_of(
        st.just("*"),
        one.map(str),
        st.lists(one, min_size=2, max_size=3).map(lambda some: ",".join(map(str, some))),
        span,
        st.sampled_from([2, 5, 7, 10, 15, 30]).filter(lambda step: step <= last).map(lambda step: f"*/{step}"),
        st.tuples(span.filter(lambda span: len(set(span.split("-"))) == 2), st.integers(1, 7)).map(
            lambda pair: f"{pair[0]}/{pair[1]}"
        ),
    )


rarely = st.sampled_from(["*"] * 5)
crons = st.tuples(
    fields(0, 59),
    st.one_of(fields(0, 23), fields(0, 3)),
    st.one_of(rarely, fields(1, 28)),
    st.one_of(rarely, fields(1, 12)),
    st.one_of(rarely, fields(0, 7)),
).map(" ".join)


@settings(max_examples=150, deadline=None)
@given(cron=crons, night=st.sampled_from(NIGHTS), seconds=st.integers(0, (BEFORE + AFTER) * 86_400))
@example(cron="30 2 * * *", night=NIGHTS[0], seconds=88_200)
@example(cron="15,45 2 * * *", night=NIGHTS[0], seconds=91_800)
@example(cron="30 2 * * *", night=NIGHTS[1], seconds=92_400)
@example(cron="*/10 * * * *", night=NIGHTS[1], seconds=92_400)
@example(cron="*/10 3 * * *", night=NIGHTS[3], seconds=91_800)
@example(cron="0 */2 * * *", night=NIGHTS[2], seconds=53_000)
@example(cron="*/5 23 * * *", night=NIGHTS[8], seconds=91_800)
def test_slots_are_those_of_the_oracle(cron, night, seconds):
    middle = at(f"{night[1]}T00:00:00")
    first, last = middle - BEFORE * DAY, middle + AFTER * DAY
    now = first + timedelta(seconds=seconds)
    slots = brute_force(cron, night)
    late, early = [slot for slot in slots if slot > now], [slot for slot in slots if slot <= now]
    this = job(cron, night[0])

    newest, following = latest_slot(this, now), next_slots(this, now, len(late) + 1)

    assert following[: len(late)] == late
    assert following[len(late) :] == [] or following[len(late)] > last
    assert newest == early[-1] if early else newest is None or newest < first


@settings(max_examples=40, deadline=None)
@given(cron=crons, night=st.sampled_from(NIGHTS), seconds=st.lists(st.integers(0, 4 * 86_400), min_size=2, max_size=5))
def test_slots_are_the_same_from_wherever_they_are_looked_at(cron, night, seconds):
    this, first = job(cron, night[0]), at(f"{night[1]}T00:00:00") - 2 * DAY

    moments = sorted(first + timedelta(seconds=each) for each in seconds)
    ways = [next_slots(this, moment, 30) for moment in moments]
    for one, other in itertools.pairwise(ways):
        if one and other and one[-1] >= other[0]:
            assert one[one.index(other[0]) :] == other[: len(one) - one.index(other[0])]
    for slot in ways[0]:
        assert latest_slot(this, slot) == slot
        assert latest_slot(this, slot + MINUTE / 2) == slot
        assert next_slots(this, slot - timedelta(microseconds=1), 1) == [slot]


@pytest.mark.parametrize(
    ("cron", "zone", "after", "slots"),
    [
        ("30 2 * * *", "UTC", "2026-01-01T00:00", ["2026-01-01T02:30", "2026-01-02T02:30"]),
        # 2:30 is skipped on 29 March, when 2:00 becomes 3:00; on 25 October it comes twice
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        ("30 * * * *", "Europe/Berlin", "2026-10-25T00:00", ["2026-10-25T00:30", "2026-10-25T01:30"]),
        # 2:00 becomes 2:30 on 4 October there, and 2:00 becomes 1:30 on 5 April
        ("10 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["2026-10-03T15:30", "2026-10-04T15:10"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", ["2026-04-04T14:45", "2026-04-05T15:15"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 0 1 * 1", "UTC", "2026-11-21T00:00", ["2026-11-23T00:00", "2026-11-30T00:00", "2026-12-01T00:00"]),
        ("0 0 l * *", "UTC", "2026-02-01T00:00", ["2026-02-28T00:00", "2026-03-31T00:00"]),
        ("0 9 * * mon-fri", "UTC", "2026-11-20T12:00", ["2026-11-23T09:00"]),
    ],
)
def test_slots_by_hand(cron, zone, after, slots):
    assert next_slots(job(cron, zone), at(after), len(slots)) == [at(each) for each in slots]
    assert latest_slot(job(cron, zone), at(slots[0])) == at(slots[0])


def test_without_a_schedule_there_are_none():
    by_hand = job(None)

    assert latest_slot(by_hand, at("2026-01-01")) is None
    assert next_slots(by_hand, at("2026-01-01"), 3) == []
    assert due(by_hand, [], at("2026-01-01"), at("2020-01-01")) is None


@pytest.mark.parametrize(
    "cron", ["", "x", "* * * *", "* * * * * *", "@hourly", "60 * * * *", "* * * * 9", "0 0 31 4 *"]
)
def test_what_is_no_schedule(cron):
    with pytest.raises(ValueError, match="expected five fields"):
        check_cron(cron)


# --- what is due


@dataclass(frozen=True)
class Run:
    run: int
    slot: str | None = None
    state: str = "published"
    attempt: int = 1
    started: str = "2026-01-01T00:00:00+00:00"
    ended: str | None = None
    retry_at: str | None = None


NIGHTLY = job("30 2 * * *", attempts=3, wait_seconds=600)
MONDAY, TUESDAY = "2026-11-23T02:30:00+00:00", "2026-11-24T02:30:00+00:00"
CREATED = at("2026-11-01T12:00")


def test_a_new_job_waits_for_its_first_slot():
    created = at("2026-11-23T02:40")

    assert due(NIGHTLY, [], at("2026-11-23T03:00"), created) is None
    assert due(NIGHTLY, [], at("2026-11-24T02:29"), created) is None
    assert due(NIGHTLY, [], at("2026-11-24T02:30"), created) == Due(TUESDAY, "schedule", 1)
    assert due(NIGHTLY, [Run(0, MONDAY, "skipped")], at("2026-11-23T03:00"), created) is None


def test_one_that_was_written_anew_is_as_old_as_its_first_run():
    by_hand = Run(1, None, started="2026-11-22T12:00:00+00:00")

    assert due(NIGHTLY, [by_hand], at("2026-11-23T03:00"), at("2026-11-23T02:50")) == Due(MONDAY, "schedule", 1)
    assert due(NIGHTLY, [by_hand], at("2026-11-22T13:00"), at("2026-11-23T02:50")) is None


def test_missed_slots_are_one_run():
    week_ago = [Run(1, "2026-11-16T02:30:00+00:00")]

    assert due(NIGHTLY, week_ago, at("2026-11-24T18:00"), CREATED) == Due(TUESDAY, "schedule", 1)


@pytest.mark.parametrize("state", ["running", "published", "unchanged"])
def test_a_slot_with_a_record_is_not_due(state):
    records = [Run(3, MONDAY, state), Run(2, "2026-11-22T02:30:00+00:00")]

    assert due(NIGHTLY, records, at("2026-11-23T09:00"), CREATED) is None
    assert due(NIGHTLY, records, at("2026-11-24T02:30"), CREATED) == Due(TUESDAY, "schedule", 1)


def test_a_skip_leaves_the_slot_due():
    records = [Run(1, "2026-11-22T02:30:00+00:00"), Run(0, MONDAY, "skipped")]

    assert due(NIGHTLY, records, at("2026-11-23T02:40"), CREATED) == Due(MONDAY, "schedule", 1)


@pytest.mark.parametrize("minutes", [-10, 10])
def test_clocks_that_disagree_run_a_slot_once(minutes):
    """A machine ahead runs first, one behind comes later; each then finds the other's record."""
    other = timedelta(minutes=minutes)
    records = [Run(1, "2026-11-22T02:30:00+00:00")]
    begun = []
    for minute in range(0, 60 * 48, 5):
        true = at("2026-11-23T00:00") + minute * MINUTE
        for clock in (true, true + other):
            if found := due(NIGHTLY, records, clock, CREATED):
                begun.append(found.slot)
                records.append(Run(len(records) + 1, found.slot, started=clock.isoformat()))

    assert begun == [MONDAY, TUESDAY]


def test_an_older_slot_is_never_due():
    ahead = [Run(2, MONDAY), Run(1, "2026-11-21T02:30:00+00:00")]

    assert due(NIGHTLY, ahead, at("2026-11-23T02:20"), CREATED) is None


def test_a_clock_that_was_years_ahead_does_not_stop_a_job():
    records = [Run(2, "2036-11-23T02:30:00+00:00", started="2036-11-23T02:30:00+00:00"), Run(1, MONDAY)]

    assert due(NIGHTLY, records, at("2026-11-23T12:00"), CREATED) is None
    assert due(NIGHTLY, records, at("2026-11-24T03:00"), CREATED) == Due(TUESDAY, "schedule", 1)


# --- retries


def test_waits_double_until_a_day():
    waits = [wait(Retries(wait_seconds=600), attempt) for attempt in (1, 2, 3, 8, 9, 100, 10**9)]

    assert waits == [10 * MINUTE, 20 * MINUTE, 40 * MINUTE, 1280 * MINUTE, DAY, DAY, DAY]


@pytest.mark.parametrize("state", ["failed", "lost", "interrupted"])
def test_a_run_that_failed_is_tried_again_when_it_is_time(state):
    first = Run(1, MONDAY, state, started=MONDAY, retry_at="2026-11-23T03:10:00+00:00")

    assert due(NIGHTLY, [first], at("2026-11-23T03:09"), CREATED) is None
    assert due(NIGHTLY, [first], at("2026-11-23T03:10"), CREATED) == Due(MONDAY, "retry", 2)


def test_one_that_could_not_say_when_is_tried_after_the_wait():
    lost = Run(1, MONDAY, "lost", started="2026-11-23T02:31:00+00:00")

    assert due(NIGHTLY, [lost], at("2026-11-23T02:40"), CREATED) is None
    assert due(NIGHTLY, [lost], at("2026-11-23T02:41"), CREATED) == Due(MONDAY, "retry", 2)
    ended = replace(lost, ended="2026-11-23T04:00:00+00:00", attempt=2)
    assert retry_at(NIGHTLY.retries, ended) == at("2026-11-23T04:20")


def test_attempts_are_used_up_and_then_comes_the_next_slot():
    failed = [
        Run(number, MONDAY, "failed", number, retry_at="2026-11-23T02:40:00+00:00" if number < 3 else None)
        for number in (1, 2, 3)
    ]

    assert due(NIGHTLY, failed[:2], at("2026-11-23T09:00"), CREATED) == Due(MONDAY, "retry", 3)
    assert due(NIGHTLY, failed, at("2026-11-23T09:00"), CREATED) is None
    assert due(NIGHTLY, failed, at("2026-11-24T02:30"), CREATED) == Due(TUESDAY, "schedule", 1)
    assert retry_at(NIGHTLY.retries, failed[2]) is None


def test_the_next_slot_goes_before_a_retry():
    failed = Run(1, MONDAY, "failed", retry_at="2026-11-23T02:40:00+00:00")

    assert due(NIGHTLY, [failed], at("2026-11-24T02:30"), CREATED) == Due(TUESDAY, "schedule", 1)


@pytest.mark.parametrize(("state", "expected"), [("published", None), ("unchanged", None), ("failed", "retry")])
def test_a_run_by_hand_that_went_well_is_a_retry(state, expected):
    records = [Run(1, MONDAY, "failed", retry_at="2026-11-23T02:40:00+00:00"), Run(2, None, state)]

    found = due(NIGHTLY, records, at("2026-11-23T09:00"), CREATED)

    assert (found and found.trigger) == expected


def test_a_run_by_hand_that_failed_is_not_tried_again_by_itself():
    by_hand = Run(2, None, "failed", ended=MONDAY, started=MONDAY)

    assert retry_at(NIGHTLY.retries, by_hand) is None
    assert due(NIGHTLY, [by_hand, Run(1, MONDAY)], at("2026-11-23T23:00"), CREATED) is None


def test_one_attempt_means_no_retry():
    failed = Run(1, MONDAY, "failed", ended=MONDAY)

    assert due(job("30 2 * * *", attempts=1), [failed], at("2026-11-23T23:00"), CREATED) is None


# --- a simulated month


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_history_runs_every_slot_at_most_once_and_none_for_nothing(data):
    """Nodes with clocks up to ten minutes apart ask at random times; runs take long, fail, die, are skipped."""
    cron = data.draw(st.sampled_from(["30 2 * * *", "0 */6 * * *", "15 * * * *", "30 2 * * 1"]))
    this = job(cron, "Europe/Berlin", attempts=2, wait_seconds=1800)
    created = at("2026-10-20T12:00")
    skews = data.draw(st.lists(st.integers(-10, 10), min_size=2, max_size=4))
    records: list[Run] = []
    began: list[tuple[str, str, int]] = []
    true, busy_until = created, created
    for _ in range(data.draw(st.integers(1, 60))):
        true += data.draw(st.integers(1, 12 * 60)) * MINUTE
        clock = true + data.draw(st.sampled_from(skews)) * MINUTE
        found = due(this, records, clock, created)
        if found is None:
            continue
        slot = datetime.fromisoformat(found.slot)
        assert created < slot <= clock
        if true < busy_until:
            records.append(Run(0, found.slot, "skipped", started=clock.isoformat()))
            continue
        assert (found.slot, found.attempt) not in [(slot, attempt) for slot, _, attempt in began]
        began.append((found.slot, found.trigger, found.attempt))
        state = data.draw(st.sampled_from(["published", "unchanged", "failed", "lost", "interrupted"]))
        busy_until = true + data.draw(st.integers(1, 600)) * MINUTE
        records.append(Run(len(began), found.slot, state, found.attempt, started=clock.isoformat()))

    slots = [datetime.fromisoformat(slot) for slot, _, _ in began]
    assert slots == sorted(slots)
    assert all(attempt <= 2 for _, _, attempt in began)
    assert all((trigger == "schedule") == (attempt == 1) for _, trigger, attempt in began)
    newest = latest_slot(this, true - 10 * MINUTE)
    if newest is not None and newest > created and true >= busy_until:
        final = due(this, records, true, created)
        assert newest in slots or final is not None or (slots and max(slots) > newest)
