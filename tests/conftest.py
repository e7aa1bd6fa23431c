"""What holds for every test."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what runs in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else no test and no child of one can be interrupted
