"""Computing: the worker processes that hold models, train runs and sample from them, and the supervisors of workers.

``protocol`` is all that the engine imports. The files of this folder and of ``supervision`` import no torch.
"""

from chockstone.extras import require

require("server", __name__, packages=["orjson", "torch"])
