"""The lifecycle benchmark: ``python benchmarks/lifecycle/run.py --help``."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.harness.aims import Counts, at_least, at_most, median, ratio
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.command import Help
from benchmarks.harness.measure import Against, Column, Measure, against
from benchmarks.harness.plot import Bars
from benchmarks.harness.units import count, duration, megabytes, megabytes_per_second, milliseconds, times
from benchmarks.lifecycle import deleting, download, listing, saving
from benchmarks.lifecycle.scale import LORA, WHOLE
from benchmarks.lifecycle.setup import set_up

EPILOG = """\
With --quick, the F-like run is a small stand-in: its figure is printed with a ~ and fails the run only if it
could not be measured at all. The archive that is downloaded is a third of its size; its figure counts.
"""

SAVING = Measure(
    "saving",
    "Saving until durable",
    saving.measure_saving,
    columns=(Column("seconds", "each", duration, spread=True, against=(Against("library", saving.library_of),)),),
    ours=saving.OURS.values(),
    panel=Bars("seconds"),
    aims=(
        at_most(
            "save_state against the library's own durable save, L-like",
            ratio("seconds", saving.OURS[LORA], saving.LIBRARY[LORA]),
            1.25,
            times,
        ),
        at_most(
            "save_state against the library's own durable save, F-like",
            ratio("seconds", saving.OURS[WHOLE], saving.LIBRARY[WHOLE]),
            1.25,
            times,
            counts=Counts.FULL,
        ),
    ),
)

DOWNLOAD = Measure(
    "download",
    "Downloading",
    download.measure_download,
    columns=(
        Column(
            "bytes_per_second",
            "rate",
            megabytes_per_second,
            spread=True,
            against=(against("bare loop", download.BARE),),
        ),
        Column("grown_bytes", "memory grown", megabytes),
    ),
    ours=(download.OURS,),
    panel=Bars("bytes_per_second"),
    aims=(
        at_least(
            "bytes/s against a bare sendfile loop", ratio("bytes_per_second", download.OURS, download.BARE), 0.70, times
        ),
        at_most("memory grown, of the size of the archive", median(download.OURS, "memory"), 0.05, times),
    ),
)

LISTING = Measure(
    "listing",
    "Listing",
    listing.measure_listing,
    columns=(Column("seconds", "each", duration, spread=True),),
    ours=(listing.FIRST,),
    panel=Bars("seconds"),
    aims=(
        at_most("first page of ten thousand checkpoints", median(listing.FIRST, "seconds"), 0.050, milliseconds),
        at_most("resident memory, most against before", median(listing.FIRST, "memory"), 1.10, times),
    ),
)

DELETING = Measure(
    "deleting",
    "Deleting in bulk",
    deleting.measure_deleting,
    columns=(Column("per_second", "a second", count, spread=True),),
    ours=(deleting.BULK,),
    panel=Bars("per_second"),
    # A rate without a bound: it must only have been measured.
    aims=(at_least("deletions a second, 32 at a time", median(deleting.BULK, "per_second"), 0, count),),
)

BENCHMARK = Benchmark(
    folder=Path(__file__).resolve().parent,
    title="The life of a checkpoint",
    help=Help(
        about="What saving, listing, downloading and deleting checkpoints through the server costs.",
        quick="less than a minute: smaller archives, fewer repeats",
        disk="8 GB",
        epilog=EPILOG,
    ),
    measures=(SAVING, DOWNLOAD, LISTING, DELETING),  # deleting comes after listing: from among all those listed
    set_up=set_up,
    panels_per_row=2,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
