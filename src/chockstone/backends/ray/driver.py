"""The driver: the child process that talks to Ray for the server, for one group of workers.

Ray ends a process whose cluster is gone. That must not be the server, so the driver is a process of its own, and its
state of Ray ends with it. It ends when its group ends, and when the server closes the channel.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from chockstone.backends.channel import BlockingChannel, ChannelClosed, Message
from chockstone.backends.ray.plan import RayPlan, take_plan
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.telemetry.log_format import configure_logging

if TYPE_CHECKING:
    from chockstone.backends.ray.group import RayWorkerGroup

log = logging.getLogger(__name__)
_LEAVE_SECONDS: Final = 15.0  # for Ray to end its processes


def main() -> None:
    channel = BlockingChannel(socket.socket(fileno=int(sys.argv[-1])))
    plan, config = take_plan()
    os.chdir("/")  # Ray adds the directory of its driver to the module path of all workers
    configure_logging(config.log_level, config.log_format)
    Driver(channel).run(plan, config)


class Driver:
    def __init__(self, channel: BlockingChannel) -> None:
        self._channel = channel
        self._messages: queue.Queue[Mapping[str, Any]] = queue.Queue()
        self._group: RayWorkerGroup | None = None
        self._leaving = threading.Lock()

    def run(self, plan: RayPlan, config: WorkerConfig) -> None:
        """Run the group and end the process. Does not return."""
        threading.Thread(target=self._read, name="channel", daemon=True).start()
        try:
            self._work(plan, config)
        except Exception as error:  # the server logs it
            log.debug("ray group failed", exc_info=True)
            self._send(event="lost", reason=f"Ray failed: {type(error).__name__}: {error}")
        self._leave()

    def _work(self, plan: RayPlan, config: WorkerConfig) -> None:
        try:
            from chockstone.backends.ray.group import RayRefused, RayWorkerGroup, RayWorkerLost
        except ImportError as error:
            self._send(event="refused", reason=f"Ray cannot be imported ({error}): pip install 'chockstone[ray]'")
            return
        group = self._group = RayWorkerGroup(plan, config)
        try:
            host = self._join(group, plan)
            members = group.place()
            nodes = sorted({member.host for member in members})
            self._send(event="placed", host=host, workers=len(members), nodes=nodes)
            start = self._messages.get()
            group.run(members, host=start["host"], port=start["port"], token=start["token"])
        except RayRefused as error:
            self._send(event="refused", reason=str(error))
        except RayWorkerLost as error:
            self._send(event="lost", reason=str(error))
        else:
            self._send(event="ended")

    def _join(self, group: RayWorkerGroup, plan: RayPlan) -> str:
        timer = threading.Timer(plan.join_seconds, self._give_up, [plan])
        timer.daemon = True
        timer.start()
        try:
            return group.join()
        finally:
            timer.cancel()

    def _give_up(self, plan: RayPlan) -> None:
        """Called from a timer thread: Ray itself would try for a quarter of an hour, without a way to stop it."""
        who = "one of this server's own" if plan.address is None else repr(plan.address)
        reason = f"the Ray cluster, {who}, did not answer as one within {plan.join_seconds:g} seconds"
        self._send(event="refused" if plan.address else "lost", reason=reason)
        self._leave()

    def _read(self) -> None:
        try:
            while True:
                self._messages.put(self._channel.receive().values)
        except ChannelClosed:
            self._leave()

    def _send(self, **values: Any) -> None:
        try:
            self._channel.send(Message(values))
        except ChannelClosed:
            log.debug("event not sent: the server has closed the channel")

    def _leave(self) -> None:
        """End the group and the process. Of several threads that call this, the first does it."""
        with self._leaving:
            timer = threading.Timer(_LEAVE_SECONDS, os._exit, [1])
            timer.daemon = True
            timer.start()  # the kernel then kills what Ray has not ended: its processes die with their parent
            if self._group is not None:
                self._group.close()
            os._exit(0)


if __name__ == "__main__":
    main()
