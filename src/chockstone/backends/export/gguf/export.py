"""The export: a run merged into its base model, as one GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gguf import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFType, GGUFWriter, LlamaFileType

from chockstone.backends.export.gguf.families import describe, find_family
from chockstone.backends.export.gguf.tensors import GgufTensor, NumberType, choose_type, plan_tensors
from chockstone.backends.export.gguf.vocabulary import NONE, read_vocabulary
from chockstone.backends.export.gguf.writing import check_file, write_file
from chockstone.backends.export.merge import MergedModel, open_merged
from chockstone.checkpoints import Archive
from chockstone.checkpoints.errors import ExportRefused
from chockstone.checkpoints.restoring.new_file import new_file

SUFFIX: Final = ".gguf"
_FILE_TYPES: Final = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
}
# By what is done and how many bytes it is done to: yields what to tell of bytes done.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class GgufOptions:
    number_type: NumberType | None = None  # None: that of the base model's files
    with_tokenizer: bool = True


@dataclass(frozen=True, slots=True)
class GgufReport:
    architecture: str
    number_type: NumberType
    tensors: int
    size_bytes: int
    notes: tuple[str, ...]


def export_gguf(
    archive: Archive,
    base: Path,
    target: Path,
    options: GgufOptions,
    *,
    progress: Progress = lambda _what, _size_bytes: nullcontext(lambda _count: None),
) -> GgufReport:
    """Write the file ``target``, which must not exist; its folder must. ``base``: directory of the run's base model.

    The file is read back before it appears, and durable on return. Raises ExportRefused, DamagedArchive or StoreError,
    and leaves nothing behind then.
    """
    if target.suffix != SUFFIX:
        raise ExportRefused(f"{str(target)!r} does not end in {SUFFIX!r}, by which programs recognise such files")
    with new_file(target) as partial, open_merged(archive, base) as model:
        writer, tensors, number_type, notes = _plan(model, options, name=base.absolute().name)
        size_bytes = sum(tensor.size_bytes for tensor in tensors)
        with progress("writing", size_bytes) as on_bytes:
            digests = write_file(writer, tensors, partial, on_bytes=on_bytes)
        with progress("reading back", size_bytes) as on_bytes:
            check_file(partial, writer, tensors, digests, on_bytes=on_bytes)
        size_bytes = partial.stat().st_size
    return GgufReport(writer.arch, number_type, len(tensors), size_bytes, notes)


def _plan(
    model: MergedModel, options: GgufOptions, *, name: str
) -> tuple[GGUFWriter, list[GgufTensor], NumberType, tuple[str, ...]]:
    config: Any = model.parsed_config  # Any: of transformers
    family = find_family(config)
    number_type = options.number_type or choose_type(model)
    writer = GGUFWriter(None, family.architecture)
    writer.add_type(GGUFType.MODEL)
    writer.add_name("".join(filter(str.isprintable, f"{name}-merged")))  # transformers cannot read one named "mistral"
    writer.add_file_type(_FILE_TYPES[number_type])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    description = describe(writer, config, family)
    tensors = plan_tensors(model, family, number_type, description.frequency_factors)
    notes = description.notes
    if options.with_tokenizer:
        vocabulary = read_vocabulary(model.companions, model.config, size=config.vocab_size)
        vocabulary.add_to(writer)
        notes += vocabulary.notes
    else:
        writer.add_tokenizer_model(NONE)
    fallen = sum(tensor.kind == GGMLQuantizationType.F16 for tensor in tensors) if number_type == "q8_0" else 0
    if fallen:
        notes += (f"{fallen} tensors are of type f16, as their rows are no multiple of the 32 numbers of a q8_0 block",)
    return writer, tensors, number_type, notes
