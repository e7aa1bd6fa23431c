"""Outlines: a base model without numbers, and what its runs and passes take.

The passes run the code of training on the meta device. So an outline follows every change of that code, and knows every
architecture that it knows. Passes over models whose layers repeat run over few of the layers.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from chockstone.backends.losses.loss_meter import PassBudget
from chockstone.backends.losses.losses import choose_loss
from chockstone.backends.planning.depth import PassMemory, make_shallow
from chockstone.backends.planning.live_bytes import LiveBytes
from chockstone.backends.planning.shape_arithmetic import ShapeArithmetic
from chockstone.backends.run_spec import Recomputed, RunSpec
from chockstone.backends.training.activations import Activations
from chockstone.backends.training.allocator import POSITIONS
from chockstone.backends.training.base_model import BaseModel, assemble_base_model, choose_dtype
from chockstone.backends.training.examples import check_examples
from chockstone.backends.training.flat_parameters import blank_like
from chockstone.backends.training.forward import run_shares
from chockstone.backends.training.run import TrainedRun
from chockstone.wire.codecs.passes import Datum, Pass
from chockstone.wire.failures import ServerFailure

log = logging.getLogger(__name__)
META: Final = torch.device("meta")
_NOT_SHALLOW: Final = (TypeError, ValueError, LookupError, AttributeError, RuntimeError)  # where all layers are needed
_LOSS: Final = "cross_entropy"
_LONGEST_RUN: Final = 4096  # tokens
_GAPS: Final = 1.3  # resident bytes per byte in use, on a CPU, while glibc keeps what is freed; measured: 1.29 to 1.33


class ModelOutline:
    """A model that has shapes only. Reads ``config.json``; the weights need not exist."""

    def __init__(self, directory: Path, *, dtype: str, device: str) -> None:
        """``device``: where the model would be, which chooses the type of its numbers if ``dtype`` is "auto".

        Raises ServerFailure if no model can be made of the files.
        """
        self._device = device
        number_type = choose_dtype(directory.name, dtype, torch.device(device))
        try:
            config: Any = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
            exact = number_type if isinstance(number_type, torch.dtype) else config.dtype or torch.float32
            with META:
                built: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # it has no types
                    config, dtype=exact, trust_remote_code=False
                )
        except Exception as error:  # each architecture raises its own
            raise ServerFailure(
                f"no model can be planned from {str(directory)!r}: {type(error).__name__}: {error}"
            ) from error
        model = cast("PreTrainedModel", built)
        shallow = make_shallow(model)  # of a model that is not assembled yet
        self.base = _assemble(directory, model)
        self._repetition = None if shallow is None else shallow[0]
        self._shallow = [] if shallow is None else [_assemble(directory, each) for each in shallow[1:]]
        self._runs: dict[tuple[int, RunSpec], TrainedRun] = {}  # of shallow models, by number and specification
        self._peaks: dict[tuple[RunSpec, int, int, Recomputed], int] = {}  # of passes that were run

    @property
    def architecture(self) -> str:
        return self.base.architecture

    @property
    def dtype(self) -> str:
        return str(self.base.dtype).removeprefix("torch.")

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.base.model.parameters())

    @property
    def base_bytes(self) -> int:
        """Of weights and buffers, each tied weight once."""
        model = self.base.model
        return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))

    @property
    def cache_bytes_per_token(self) -> int | None:
        """Of the KV cache, for one sequence; None if the configuration does not describe it."""
        config = self.base.model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", None)
        layers = getattr(config, "num_hidden_layers", None)
        if not heads or not layers:
            return None
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * layers * heads * size * self.base.dtype.itemsize)

    def make_run(self, spec: RunSpec) -> TrainedRun:
        """Raises BadRequest if the model has no layers that the run could train."""
        return TrainedRun(self.base, spec)

    def pass_bytes(self, run: TrainedRun, *, sequences: int, tokens: int, recomputed: Recomputed) -> int:
        """The most resident memory that a micro-batch takes at any moment, beyond the base model and the run; its
        gradient included."""
        is_returned = recomputed != "none" or sequences * tokens > POSITIONS or self._device != "cpu"
        return int(self.tensor_bytes(run, sequences, tokens, recomputed) * (1 if is_returned else _GAPS))

    def tensor_bytes(self, run: TrainedRun, sequences: int, tokens: int, recomputed: Recomputed) -> int:
        """The same of the tensors alone, without the gaps that they leave in memory.

        Passes of long sequences are not run: a parabola through shorter ones has the terms by token and by pair.
        """
        if tokens <= _LONGEST_RUN:
            return self._peak(run, sequences, tokens, recomputed)
        lengths = [_LONGEST_RUN // 4, _LONGEST_RUN // 2, _LONGEST_RUN]
        peaks = [self._peak(run, sequences, length, recomputed) for length in lengths]
        return int(np.polyval(np.polyfit(lengths, peaks, 2), tokens))

    def whole_pass(self, run: TrainedRun, sequences: int, tokens: int, recomputed: Recomputed) -> PassMemory:
        """What the tensors of a pass over all layers take."""
        return _run_pass(self.base, run, sequences=sequences, tokens=tokens, recomputed=recomputed)

    def _peak(self, run: TrainedRun, sequences: int, tokens: int, recomputed: Recomputed) -> int:
        key = (run.spec, sequences, tokens, recomputed)
        if key not in self._peaks:
            peak = self.extrapolated_pass(run.spec, sequences, tokens, recomputed)
            self._peaks[key] = self.whole_pass(run, sequences, tokens, recomputed).peak if peak is None else peak
        return self._peaks[key]

    def extrapolated_pass(self, spec: RunSpec, sequences: int, tokens: int, recomputed: Recomputed) -> int | None:
        """From passes over few layers; None if that is not possible."""
        if self._repetition is None or recomputed == "most":  # where kinds of layers are not the only difference
            return None
        try:
            few, more = (
                _run_pass(base, self._run_on(number, spec), sequences=sequences, tokens=tokens, recomputed=recomputed)
                for number, base in enumerate(self._shallow)
            )
        except _NOT_SHALLOW as error:
            log.debug("passes over few layers failed architecture=%s error=%r", self.architecture, error)
            self._repetition = None
            return None
        return self._repetition.extrapolate(few, more)

    def _run_on(self, number: int, spec: RunSpec) -> TrainedRun:
        if (number, spec) not in self._runs:
            self._runs[number, spec] = TrainedRun(self._shallow[number], spec)
        return self._runs[number, spec]


def _run_pass(base: BaseModel, run: TrainedRun, *, sequences: int, tokens: int, recomputed: Recomputed) -> PassMemory:
    live, kept = LiveBytes(META), 0

    def backbone(**named: Any) -> Any:  # Any: as the model wants and returns it
        nonlocal kept
        output = base.backbone(**named)
        kept = live.now
        return output

    watched = replace(
        base,
        backbone=backbone,
        max_context=max(tokens, base.max_context),
        activations=Activations(base.model, recomputed=recomputed),
    )
    loss = choose_loss(_LOSS, {}, {})
    datum = Datum(np.zeros(tokens, dtype=np.int32), {"target_tokens": np.zeros(tokens, dtype=np.int64)})
    examples = check_examples(Pass("", 1, (datum,) * sequences, _LOSS, {}, forward_only=False), loss, watched)
    with live:
        gradient = blank_like(run.trained.parameters.flat)
        with run.trained.parameters.accumulating(gradient), run.trained.applied(), ShapeArithmetic():
            for _ in run_shares(watched, [examples], loss, PassBudget("unmetered")):
                pass
    return PassMemory(live.peak, kept)


def _assemble(directory: Path, model: PreTrainedModel) -> BaseModel:
    blank = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))  # type: ignore[no-untyped-call]  # it has no types
    return assemble_base_model(directory.name, directory, model, blank)
