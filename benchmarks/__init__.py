"""Benchmarks: scripts that measure Chockstone beside its peers on the same machine in the same run.

Nothing here is shipped, and nothing in ``src`` may import it.
"""

import os

# Before any library reads them, also in processes that a benchmark starts: no downloads, no progress bars.
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
