# tensors carry their axes
"""Base models: a Hugging Face causal language model, frozen and shared by all runs on it.

Shapes: B batch, T time, D hidden, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from chockstone.backends.export.expert_files import ExpertFiles, choose_expert_files
from chockstone.backends.export.model_files import check_weights
from chockstone.backends.quantisation.layers import FULL, find_precision, weight_bytes
from chockstone.backends.quantisation.quantiser import QuantiserConfig
from chockstone.backends.quantisation.stored import StoredError, stored_precision
from chockstone.backends.run_spec import ActivationCheckpointing, BasePrecision
from chockstone.backends.training.activations import Activations
from chockstone.backends.training.full import FullWeights, OwnWeights
from chockstone.backends.training.lora import Adaptable, AdaptableLinear, make_adaptable
from chockstone.backends.training.packing.layout import PackedBatch
from chockstone.backends.training.packing.verification import can_pack, run_packed
from chockstone.backends.training.process_group import SINGLE_PROCESS, ProcessGroup
from chockstone.checkpoints import Archive
from chockstone.sampling.adapter import LowRank
from chockstone.sampling.experts.modules import ExpertProjection, make_experts_adaptable
from chockstone.sampling.experts.routers import Routers, find_routers
from chockstone.wire.failures import BadRequest, ServerFailure

log = logging.getLogger(__name__)
RestoreTemplate = Callable[
    [Archive], MutableMapping[str, Any]
]  # makes a state with room for tensors; Any: their values
Finish = Callable[[torch.Tensor], torch.Tensor]
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
_ADAPTER: Final = "adapter_config.json"
_UNLIMITED: Final = 32_768  # context of a model that names no limit


@dataclass(frozen=True, slots=True, eq=False)
class HeldModel:
    """How a model is held: by one process, or sharded over several."""

    backbone: Callable[..., Any]  # Any: each architecture returns its own kind of output
    own_weights: Callable[[], OwnWeights]  # a copy of all weights, for a run that trains them
    process_group: ProcessGroup = SINGLE_PROCESS
    computing: Callable[[], AbstractContextManager[None]] = nullcontext  # surrounds each use of the model
    restore_template: RestoreTemplate | None = None  # which parts of an archive this process reads; None: all
    architecture: str | None = None  # None: the name of the model's class


@dataclass(frozen=True, slots=True, eq=False)
class BaseModel:
    """A model in evaluation mode, without gradients. Its weights do not change.

    The logits of ``model`` are ``finish(head(backbone(tokens)))``, and hidden states at a position do not depend on
    later positions. Both are verified when the model is loaded.
    """

    name: str
    directory: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    vocab_size: int
    max_context: int
    device: torch.device
    dtype: torch.dtype  # computed with; quantised weights take less memory
    precision: str  # of the weights in the decoder's blocks: "8bit", "4bit", or "full"
    weight_bytes: int  # that the weights take in this process
    architecture: str
    layers: Mapping[str, Adaptable]
    backbone: Callable[..., Any]  # Any: as above
    head: AdaptableLinear
    head_name: str
    finish: Finish  # what the model applies to its logits: scaling, soft capping
    own_weights: Callable[[], OwnWeights]
    process_group: ProcessGroup
    computing: Callable[[], AbstractContextManager[None]]
    restore_template: RestoreTemplate | None
    activations: Activations
    routers: Routers  # empty: recorded routing cannot be replayed
    packs: bool = False  # whether sequences of one micro-batch are computed without padding; verified, too

    @property
    def expert_files(self) -> ExpertFiles | None:
        """How PEFT files name the model's routed experts; None: fused."""
        return choose_expert_files(str(self.model.config.get_text_config().model_type))

    def limited(self, max_context: int | None) -> BaseModel:
        """The same model with a lower limit on the length of inputs."""
        if max_context is None or max_context >= self.max_context:
            return self
        return replace(self, max_context=max_context)

    def hidden_states(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """[B, T, D]. Sequences are padded on the right; the padding has no influence on them."""
        hidden_BTD: torch.Tensor = self.backbone(input_ids=tokens_BT, use_cache=False).last_hidden_state
        return hidden_BTD

    def trained_states(
        self, tokens_BT: torch.Tensor, routing_LNK: torch.Tensor | None = None, batch: PackedBatch | None = None
    ) -> torch.Tensor:
        """``hidden_states`` of a micro-batch. Its layers keep their activations, or are computed again.

        ``routing_LNK``: experts to compute with, for all tokens in their order. ``batch``: the layout of ``tokens_BT``,
        if they are the flat tokens of a packed batch. The backward pass must run in ``routers.forced(routing_LNK)`` and
        ``attending(batch)``, too.
        """

        def measured(tokens: int) -> torch.Tensor:
            with self.computing():  # all processes measure at their first micro-batch, which they run together
                return self.hidden_states(torch.zeros(1, tokens, dtype=tokens_BT.dtype, device=tokens_BT.device))

        with (
            self.activations.kept_or_recomputed(*tokens_BT.shape, device=self.device, measured=measured),
            self.routers.forced(routing_LNK),
        ):
            return self.hidden_states(tokens_BT) if batch is None else run_packed(self.backbone, batch)[None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., V], float32."""
        return self.finish(self.head(hidden)).float()


def load_base_model(
    name: str,
    directory: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    base_precision: BasePrecision = "auto",
    activation_checkpointing: ActivationCheckpointing = "auto",
) -> BaseModel:
    """Read a model from local files; never runs code that comes with it. Raises ServerFailure if it is unusable."""
    directory = Path(directory)
    check_directory(name, directory)
    place = torch.device(device)
    number_type = choose_dtype(name, dtype, place)
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        read: Any = AutoModelForCausalLM.from_pretrained(  # Any: a pair, with output_loading_info
            directory,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=number_type,
            output_loading_info=True,
            **_quantisation(directory, base_precision, device=device),
        )
    except StoredError as error:
        raise ServerFailure(f"model {name!r} cannot be loaded from {str(directory)!r}: {error}.") from error
    except Exception as error:  # each file format raises its own
        raise ServerFailure(
            f"model {name!r} cannot be loaded from {str(directory)!r}: {type(error).__name__}: {error}"
        ) from error
    model, loaded = read
    if missing := sorted({*loaded["missing_keys"], *(key for key, *_ in loaded["mismatched_keys"])}):
        raise ServerFailure(
            f"model {name!r}: the files in {str(directory)!r} do not have the weights that its config.json describes; "
            f"{missing[0]!r} is missing or of another shape."
        )
    placed = torch.nn.Module.to(model, place)
    return prepare_base_model(name, directory, placed, tokenizer, activation_checkpointing=activation_checkpointing)


def _quantisation(directory: Path, precision: BasePrecision, *, device: str) -> dict[str, Any]:
    """What ``from_pretrained`` needs to read or to make quantised weights. Raises StoredError."""
    config: Any = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    quantised = getattr(config, "quantization_config", None)
    stored = stored_precision(quantised)
    if stored is None and precision == "auto":
        return {}  # transformers reads what else there is
    if precision != "auto" and not quantised:
        return {"quantization_config": QuantiserConfig(precision=precision, device=device)}
    if stored is None or precision not in ("auto", stored):
        raise StoredError(
            f"its files are quantised ({stored or 'not by bitsandbytes'}), and --base-precision is {precision}. "
            f"Choose {stored or 'auto'}, or the directory of the unquantised model"
        )
    config.quantization_config = QuantiserConfig(precision=stored, device=device).to_dict()
    return {"config": config}


def check_directory(name: str, directory: Path) -> None:
    if not (directory / "config.json").is_file():
        raise ServerFailure(
            f"model {name!r}: {str(directory)!r} has no config.json; give a directory as written by save_pretrained."
        )
    if (directory / _ADAPTER).exists():  # with PEFT installed, transformers would load the adapter, too
        raise ServerFailure(
            f"model {name!r}: {str(directory)!r} has an {_ADAPTER}, so it holds an adapter. Merge the adapter into its "
            "base model, or move the files adapter_* to another directory to serve the model without it."
        )
    try:
        check_weights(directory)
    except ServerFailure as error:
        raise ServerFailure(f"model {name!r} cannot be loaded from {str(directory)!r}: {error}.") from error


def prepare_base_model(
    name: str,
    directory: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    holding: HeldModel | None = None,
    activation_checkpointing: ActivationCheckpointing = "auto",
) -> BaseModel:
    """Like ``assemble_base_model``, and verified."""
    base = assemble_base_model(
        name, directory, model, tokenizer, holding=holding, activation_checkpointing=activation_checkpointing
    )
    return _packed_if_possible(_verified_experts(_verified(_with_routers(base))))


def assemble_base_model(
    name: str,
    directory: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    holding: HeldModel | None = None,
    activation_checkpointing: ActivationCheckpointing = "auto",
) -> BaseModel:
    """Freeze ``model`` and make its linear layers adaptable, in place. ``holding`` None: one process has all of it."""
    precision = find_precision(model)
    holding = holding or HeldModel(model.base_model, lambda: FullWeights(model, device=model.device))
    if precision != FULL:
        holding = replace(holding, own_weights=lambda: _refuse_full(name, precision))
    model.train(mode=False).requires_grad_(False)
    layers = make_adaptable(model)
    embeddings: Any = model.get_input_embeddings()  # Any: some kind of nn.Embedding
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers has no types here
    head_name = next((path for path, layer in layers.items() if layer is head), None)
    if head_name is None or not isinstance(head, AdaptableLinear):
        raise ServerFailure(
            f"model {name!r} ({type(model).__name__}) has no plain linear output layer, so it cannot be trained here."
        )
    return BaseModel(
        name=name,
        directory=directory,
        model=model,
        tokenizer=tokenizer,
        vocab_size=min(head.out_features, embeddings.weight.shape[0]),
        max_context=_max_context(model.config, tokenizer),
        device=model.device,
        dtype=model.dtype,
        precision=precision,
        weight_bytes=weight_bytes(model),
        architecture=holding.architecture or type(model).__name__,
        layers=layers,
        backbone=holding.backbone,
        head=head,
        head_name=head_name,
        finish=_unchanged,
        own_weights=holding.own_weights,
        process_group=holding.process_group,
        computing=holding.computing,
        restore_template=holding.restore_template,
        activations=Activations(model, mode=activation_checkpointing),
        routers=Routers(),
    )


def _packed_if_possible(base: BaseModel) -> BaseModel:
    is_packable = can_pack(
        base.backbone,
        attention=getattr(base.model.config, "_attn_implementation", None),
        computing=base.computing,
        vocab_size=base.vocab_size,
        device=base.device,
    )
    return replace(base, packs=base.process_group.leaders_answer(is_packable))


def _refuse_full(name: str, precision: str) -> NoReturn:
    raise BadRequest(
        f"a run of rank 0 trains all weights, and those of base model {name!r} are quantised to {precision}. Create "
        "the run with a rank of at least 1, or serve the unquantised model without --base-precision."
    )


def choose_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ServerFailure("models cannot be on CUDA here: torch finds no CUDA device. Choose --device cpu or auto.")
    return device


def choose_dtype(name: str, dtype: str, device: torch.device) -> torch.dtype | str:
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    if dtype not in _DTYPES:
        raise ServerFailure(f"model {name!r}: dtype {dtype!r} is not one of auto, {', '.join(_DTYPES)}.")
    return _DTYPES[dtype]


def _max_context(config: Any, tokenizer: PreTrainedTokenizerBase) -> int:  # Any: each architecture has its own class
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if isinstance(limit, int) and limit > 0:
        return limit
    return min(int(tokenizer.model_max_length), _UNLIMITED)


def _finishes(config: Any) -> Iterator[Finish]:  # Any: as above
    """What a model may apply to its logits, according to its configuration. ``_verified`` finds out which it is."""

    def named(*names: str) -> list[float]:
        return [value for name in names if isinstance(value := getattr(config, name, None), int | float) and value]

    for cap in named(
        "final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"
    ):  # Gemma, RecurrentGemma, xLSTM
        yield partial(_cap, cap=cap)
    for factor in named("logit_scale", "lm_head_multiplier"):  # Cohere, Falcon-H1
        yield partial(torch.mul, other=factor)
    for divisor in named("logits_scaling", "logits_mup_width_multiplier"):  # Granite, Inkling
        yield partial(torch.div, other=divisor)
    for factor in named("logits_scaling"):  # HyperCLOVA X
        yield partial(torch.mul, other=factor)
    for width in named("dim_model_base"):  # MiniCPM
        yield partial(torch.div, other=config.hidden_size / width)
    yield _unchanged


def _cap(logits: torch.Tensor, *, cap: float) -> torch.Tensor:
    return cap * torch.tanh(logits / cap)


def _unchanged(logits: torch.Tensor) -> torch.Tensor:
    return logits


@torch.no_grad()
def _verified(base: BaseModel) -> BaseModel:
    """The model with what it applies to its logits. Raises ServerFailure if its logits are not understood."""
    tokens_BT = _probe(base)
    with base.computing(), base.routers.recording():
        expected = base.model(input_ids=tokens_BT, use_cache=False).logits.float()
    routing_LNK = base.routers.take()
    with base.computing(), base.routers.forced(routing_LNK):
        raw = base.head(base.hidden_states(tokens_BT))
    with base.computing(), base.routers.forced(None if routing_LNK is None else routing_LNK[:, :5]):
        prefix = base.head(base.hidden_states(tokens_BT[:, :5]))
    subject = f"model {base.name!r} ({base.architecture})"
    if not expected.isfinite().all():
        raise ServerFailure(f"{subject} gives logits that are not finite; its weights are damaged.")
    for finish in _finishes(base.model.config.get_text_config()):
        if expected.shape == raw.shape and _agree(finish(raw).float(), expected, base.dtype):
            break
    else:
        raise ServerFailure(
            f"{subject} does more after its output layer than this server knows of, so it cannot be trained here."
        )
    if not _agree(finish(prefix).float(), expected[:, :5], base.dtype):
        raise ServerFailure(f"{subject} is not causal: later tokens change earlier logits. It cannot be trained here.")
    return replace(base, finish=finish)


def _probe(base: BaseModel) -> torch.Tensor:
    """A few tokens to compare with."""
    return (torch.arange(12, device=base.device) * 7 % base.vocab_size)[None]


@torch.no_grad()
def _verified_experts(base: BaseModel) -> BaseModel:
    """The same model. Its experts are left out of ``layers`` if they compute otherwise than this server thinks."""
    experts = {name: layer for name, layer in base.layers.items() if isinstance(layer, ExpertProjection)}
    if not experts:
        return base
    tokens_BT = _probe(base)
    with base.computing(), base.routers.recording():
        expected = base.logits(base.hidden_states(tokens_BT))
    routing_LNK = base.routers.take()
    try:
        for layer in experts.values():
            down, up = (torch.zeros((), device=base.device).expand(shape) for shape in layer.matrix_shapes(1))
            layer.active = LowRank(down, up)
        with base.computing(), base.routers.forced(routing_LNK):
            adapted = base.logits(base.hidden_states(tokens_BT))
        is_known = _agree(adapted, expected, base.dtype)
    except (TypeError, RuntimeError, AttributeError):  # what other arguments or other weights bring
        is_known = False
    finally:
        for layer in experts.values():
            layer.active = None
    if is_known:
        return base
    log.warning("experts cannot be trained model=%s architecture=%s", base.name, base.architecture)
    return replace(base, layers={name: layer for name, layer in base.layers.items() if name not in experts})


@torch.no_grad()
def _with_routers(base: BaseModel) -> BaseModel:
    tokens_BT = _probe(base)

    def run() -> torch.Tensor:
        with base.computing():
            return base.hidden_states(tokens_BT)

    experts = make_experts_adaptable(base.model)
    routers = find_routers(base.model, experts, run)
    if experts and not routers:
        log.warning("routing cannot be replayed model=%s architecture=%s", base.name, base.architecture)
    return replace(base, routers=routers)


def _agree(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    tolerance = _TOLERANCE.get(dtype, 1e-4)
    scale = max(1.0, expected.abs().max().item())
    return bool(((actual - expected).abs() <= tolerance * scale).all())
