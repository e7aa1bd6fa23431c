"""The catalog: one database, and a way in for each noun."""

from __future__ import annotations

from chockstone.catalog.audit import Audit
from chockstone.catalog.checkpoints import Checkpoints
from chockstone.catalog.database import Database
from chockstone.catalog.keys import Keys
from chockstone.catalog.losses import Losses
from chockstone.catalog.opening import bring_up_to_date
from chockstone.catalog.policies import Policies
from chockstone.catalog.recoveries import Recoveries
from chockstone.catalog.runs import Runs
from chockstone.catalog.samplers import Samplers
from chockstone.catalog.sessions import Sessions
from chockstone.catalog.trash import Trash
from chockstone.catalog.usage import UsageBuckets
from chockstone.catalog.users import Users


class Catalog:
    """Made by ``open``, for the tasks of one event loop. Each call is one transaction.

    What a call returned outlives this process. With SQLite the last moments may be lost with the
    machine's power, though never a part of a transaction.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.users = Users(database)
        self.sessions = Sessions(database)
        self.runs = Runs(database)
        self.recoveries = Recoveries(database)
        self.checkpoints = Checkpoints(database)
        self.trash = Trash(database)
        self.policies = Policies(database)
        self.samplers = Samplers(database)
        self.losses = Losses(database)
        self.keys = Keys(database)
        self.audit = Audit(database)
        self.usage = UsageBuckets(database)

    @classmethod
    async def open(cls, url: str) -> Catalog:
        """Create or migrate the database as needed. ``sqlite:///PATH`` wants its directory to exist."""
        database = Database.at(url)
        try:
            await bring_up_to_date(database)
        except BaseException:
            await database.close()
            raise
        return cls(database)

    async def close(self) -> None:
        """After the last call has returned."""
        await self._database.close()

    async def __aenter__(self) -> Catalog:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()
