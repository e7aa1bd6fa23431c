"""Programs of ours that start by a fork of a process that has imported them, and not by seconds of imports.

A server and its worker take five seconds of a core to import, and tests start hundreds. ``install`` makes
``subprocess.Popen`` fork the programs that ``programs`` names; all others, and programs in an environment that changes
what is imported, are executed as ever. The code that runs is the program's own, from its ``__main__`` on.
``CHOCKSTONE_TEST_EXEC=1`` executes everything.
"""

from support.forking.popen import ForkingPopen, executed, install
from support.forking.zygote import is_zygote

__all__ = ["ForkingPopen", "executed", "install", "is_zygote"]
