"""Imports: adapters and full weights of other programs become checkpoints.

- ``uploads``: files that clients send, on disk until the import is finished or the upload expires.
- ``adapter_options``, ``tensor_file``: read the files without trust.
- ``fitting``: the tensors of a file as the weights of a run.
- ``weight_imports``: starts and finishes imports.

Nothing here knows HTTP or torch.
"""
