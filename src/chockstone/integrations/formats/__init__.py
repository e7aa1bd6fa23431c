"""Checkpoints of other programs: read into an archive (import), and written from one (export).

``reading`` maps what other programs wrote; ``pickles`` reads pickles as data, so that no code of a file runs;
``writing`` writes what other programs read. The rooms of the adapters (``dcp``, ``hf_trainer``) save and restore from
inside a program; this one converts what lies on disk. It must not know the command line.
"""

from typing import TYPE_CHECKING

from chockstone.lazy_names import lazy_names

if TYPE_CHECKING:
    from chockstone.integrations.formats.exporting import export_checkpoint
    from chockstone.integrations.formats.importing import ImportedCheckpoint, import_checkpoint
    from chockstone.integrations.formats.reading.dcp_directory import list_dcp_directory, read_dcp_directory
    from chockstone.integrations.formats.reading.foreign_checkpoint import ForeignCheckpoint
    from chockstone.integrations.formats.reading.recognition import read_foreign

__all__ = [
    "ForeignCheckpoint",
    "ImportedCheckpoint",
    "export_checkpoint",
    "import_checkpoint",
    "list_dcp_directory",
    "read_dcp_directory",
    "read_foreign",
]

__getattr__ = lazy_names(
    __name__,
    {
        "ForeignCheckpoint": "reading.foreign_checkpoint",
        "ImportedCheckpoint": "importing",
        "import_checkpoint": "importing",
        "export_checkpoint": "exporting",
        "list_dcp_directory": "reading.dcp_directory",
        "read_dcp_directory": "reading.dcp_directory",
        "read_foreign": "reading.recognition",
    },
)
