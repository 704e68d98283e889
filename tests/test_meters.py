"""`dataprep.meters`: counts, speeds, and the words for them."""

import pytest

from dataprep.meters import MEMORY_SECONDS, Meter, Speed, counts, line, short_number, short_time
from dataprep.watcher import Progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _meter(name="tokenize", total=1000, **sizes):
    clock = Clock()
    meter = Meter(clock)
    meter.begin(name, total, **sizes)
    return meter, clock


def test_what_a_stage_says():
    meter, clock = _meter(total=40_000_000, done_bytes=10_000_000, fetch_bytes=3_000_000_000)
    meter.add(Progress(planned=345))
    assert line(meter.figures()) == "25%, 1 s, 0 of 345 units"
    clock.now += 10
    meter.add(Progress(10_000_000, 1_758, 8_646_678, 9_000_000, 1_500_000_000, units=12, workers=16, retries=1))
    figures = meter.figures()
    assert line(figures) == (
        "50%, 10 s, about 20 s left, 12 of 345 units, 1,758 documents, 8,646,678 tokens, 1 MB/s, "
        "fetched 1.50 of 3.00 GB at 152.5 MB/s, 16 workers, 1 retry"
    )
    assert counts(figures, short=True) == (
        "12/345 units, 1,758 documents, 8.65M tokens, 1 MB/s, "
        "fetched 1.50 of 3.00 GB at 152.5 MB/s, 16 workers, 1 retry"
    )
    meter.add(Progress(workers=-15, retries=1, fetched_bytes=1_500_000_000))
    assert counts(meter.figures()).endswith("all 3.00 GB fetched, 1 worker, 2 retries")


def test_a_stage_that_counts_nothing_says_how_long_it_has_taken():
    meter, clock = _meter("texts", 0)
    clock.now += 130
    assert line(meter.figures()) == "2 min"
    assert counts(meter.figures()) == ""


def test_a_new_stage_counts_anew():
    meter, _ = _meter()
    meter.add(Progress(500, 5, 50, 400, 3, units=1, planned=4, workers=2, retries=1))
    meter.begin("verify", 10)
    assert line(meter.figures()) == "0%, 1 s"


def test_what_an_earlier_run_did_counts_but_is_not_fast():
    meter, clock = _meter(total=10_000_000, done_bytes=5_000_000)
    meter.add(Progress(documents=500, tokens=5000, text_bytes=4_000_000_000, units=5, planned=10, earlier=True))
    clock.now += 5
    assert line(meter.figures()) == "50%, 5 s, 5 of 10 units, 500 documents, 5,000 tokens"
    meter.add(Progress(1_000_000, 1, 10, 5_000_000, units=1))
    assert counts(meter.figures()) == "6 of 10 units, 501 documents, 5,010 tokens, 1 MB/s"


def test_more_than_all_is_all():
    meter, clock = _meter(total=10)
    clock.now += 1
    meter.add(Progress(25))
    assert line(meter.figures()) == "100%, 1 s, about 1 s left"


def test_a_speed_forgets_hours_without_workers():
    speed = Speed(0)
    assert speed.at(0) is None
    assert speed.at(7200) is None
    for second in range(7200, 7200 + 10 * int(MEMORY_SECONDS)):
        speed.add(100, second)
    assert speed.at(7200 + 10 * int(MEMORY_SECONDS)) == pytest.approx(100, rel=0.01)


def test_a_speed_is_the_average_in_the_beginning():
    speed = Speed(0)
    speed.add(5000, 10)
    assert speed.at(10) == pytest.approx(500, rel=0.02)
    assert speed.at(20) == pytest.approx(250, rel=0.05)


def test_a_burst_of_units_is_no_burst_of_speed():
    """Sixty workers elsewhere report a unit each, all in one second of each minute."""
    speed, seen = Speed(0), []
    for minute in range(1, 30):
        for worker in range(60):
            speed.add(64_000_000, 60 * minute + worker / 60)
        seen.append(speed.at(60 * minute + 1))
    assert max(seen) < 1.2 * 64_000_000
    assert min(seen) > 0.9 * 64_000_000
    assert speed.at(1e9) is None


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 "),
        (999, "999 "),
        (999.7, "1 k"),
        (999_499, "999 k"),
        (999_600, "1 M"),
        (1.234e9, "1.23 G"),
        (5e15, "5e+03 T"),
    ],
)
def test_short_numbers(number, text):
    assert short_number(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "1 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (172800, "2 days")],
)
def test_short_times(seconds, text):
    assert short_time(seconds) == text
