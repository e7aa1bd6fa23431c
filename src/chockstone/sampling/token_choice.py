"""Token choice: temperature, top-k, top-p and the random draw, for rows with different parameters.

numpy makes the final choice from a few sums of each row: cheaper than a dozen small tensor operations.

Shapes: B rows, R of them truncated, V vocabulary, K candidates, C blocks of S tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812  # the name everyone reads

from chockstone.wire.codecs.samples import Floats, SamplingParams, Tokens

Indices = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

_BLOCK: Final = 64  # a row is searched in two short scans instead of one long one
_CANDIDATES: Final = 1024  # enough for nearly every nucleus; the rare flat row is sorted whole


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """Sampling parameters of a batch's rows as tensors; rebuilt only when the batch changes."""

    temperature_B1: torch.Tensor | None  # None: 1 for every row
    greedy_B: npt.NDArray[np.bool_] | None  # None: no row
    truncated: torch.Tensor | None  # indices of the rows with a top_k or a top_p
    top_k_R: torch.Tensor
    top_p_R1: torch.Tensor
    most_k: int  # 0: some truncated row has no top_k


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """Of the rows whose text is constrained."""

    rows: torch.Tensor  # their indices
    mask_RV: torch.Tensor  # bool; each row has at least one True


def batch_rules(params: Many[SamplingParams], *, vocabulary: int, device: torch.device) -> SamplingRules:
    temperatures = [row.temperature if row.temperature > 0 else 1.0 for row in params]
    greedy = [row.temperature <= 0 for row in params]
    truncated = [
        index
        for index, row in enumerate(params)
        if not greedy[index] and (0 < row.top_k < vocabulary or row.top_p < 1.0)
    ]
    ks = [min(params[i].top_k, vocabulary) if params[i].top_k > 0 else vocabulary for i in truncated]
    most_k = max(ks, default=0)
    return SamplingRules(
        temperature_B1=None
        if all(t == 1.0 for t in temperatures)
        else torch.tensor(temperatures, dtype=torch.float32, device=device)[:, None],
        greedy_B=np.array(greedy) if any(greedy) else None,
        truncated=torch.tensor(truncated, device=device) if truncated else None,
        top_k_R=torch.tensor(ks, device=device),
        top_p_R1=torch.tensor([params[i].top_p for i in truncated], dtype=torch.float32, device=device)[:, None],
        most_k=most_k if most_k < vocabulary else 0,
    )


def choose_tokens(
    logits_BV: torch.Tensor, rules: SamplingRules, uniforms: Many[float], allowed: AllowedTokens | None = None
) -> tuple[Indices, Floats]:
    """Tokens and their log-probabilities at the row's temperature, before any truncation or constraint.

    A row whose logits are not finite gets NaN for a log-probability; other rows are not affected.
    """
    scaled_BV = logits_BV if rules.temperature_B1 is None else logits_BV / rules.temperature_B1
    probs_BV = scaled_BV.softmax(-1)
    if allowed is not None:  # truncation is of what the constraint leaves
        kept_RV = scaled_BV[allowed.rows].masked_fill_(~allowed.mask_RV, -torch.inf)
        probs_BV[allowed.rows] = kept_RV.softmax(-1)
    blocks_BCS = _split_blocks(probs_BV)
    if rules.greedy_B is not None and rules.greedy_B.all():
        tokens_B, chosen_B = _most_likely(blocks_BCS)
    else:
        uniform_B = np.array(uniforms)
        tokens_B, chosen_B = _draw(blocks_BCS, uniform_B)
        if rules.truncated is not None:
            rows = rules.truncated
            chosen_R = _draw_truncated(probs_BV[rows], uniform_B[rows.cpu().numpy()], rules)
            tokens_B[rows.cpu().numpy()] = chosen_R.cpu().numpy()
            chosen_B[rows.cpu().numpy()] = probs_BV[rows, chosen_R].cpu().numpy()
        if rules.greedy_B is not None:
            best_B, highest_B = _most_likely(blocks_BCS)
            tokens_B = np.where(rules.greedy_B, best_B, tokens_B)
            chosen_B = np.where(rules.greedy_B, highest_B, chosen_B)
    with np.errstate(divide="ignore", invalid="ignore"):
        logprobs_B = np.log(chosen_B)
    tokens_B = np.minimum(tokens_B, probs_BV.shape[1] - 1)  # a row of NaN may point into the padding
    if allowed is not None:
        bound = allowed.rows.cpu().numpy()
        chosen_R1 = torch.from_numpy(tokens_B[bound]).to(scaled_BV.device)[:, None]
        logprobs_B[bound] = scaled_BV[allowed.rows].log_softmax(-1).gather(1, chosen_R1)[:, 0].cpu().numpy()
    return tokens_B, logprobs_B


def find_topk(logits_BV: torch.Tensor, temperature: float, k: int) -> tuple[Many[Tokens], Many[Floats]]:
    """The k most likely tokens of each row, best first, and their log-probabilities."""
    scaled_BV = logits_BV / temperature if temperature > 0 else logits_BV
    logprobs_BK, tokens_BK = scaled_BV.log_softmax(-1).topk(k)
    return list(tokens_BK.cpu().numpy().astype(np.int32)), list(logprobs_BK.cpu().numpy())


def _split_blocks(probs_BV: torch.Tensor) -> torch.Tensor:
    rows, vocabulary = probs_BV.shape
    if beyond := -vocabulary % _BLOCK:
        probs_BV = F.pad(probs_BV, (0, beyond))
    return probs_BV.view(rows, -1, _BLOCK)


def _take(blocks_BCS: torch.Tensor, block_B: Indices) -> Floats:
    rows = torch.arange(len(block_B), device=blocks_BCS.device)
    taken: Floats = blocks_BCS[rows, torch.from_numpy(block_B).to(blocks_BCS.device)].cpu().numpy()
    return taken


def _most_likely(blocks_BCS: torch.Tensor) -> tuple[Indices, Floats]:
    block_B = blocks_BCS.amax(-1).cpu().numpy().argmax(1)
    inside_BS = _take(blocks_BCS, block_B)
    index_B = inside_BS.argmax(1)
    return block_B * _BLOCK + index_B, inside_BS[np.arange(len(index_B)), index_B]


def _draw(blocks_BCS: torch.Tensor, uniform_B: Doubles) -> tuple[Indices, Floats]:
    """Inverse of the cumulative distribution at each row's number, in double precision."""
    rows = np.arange(len(uniform_B))
    up_to_BC = blocks_BCS.sum(-1).cpu().numpy().cumsum(1, dtype=np.float64)
    target_B = uniform_B * up_to_BC[:, -1]
    block_B = _search(up_to_BC, target_B)
    before_B = np.where(block_B > 0, up_to_BC[rows, block_B - 1], 0.0)
    inside_BS = _take(blocks_BCS, block_B)
    index_B = _search(inside_BS.cumsum(1, dtype=np.float64), target_B - before_B)
    return block_B * _BLOCK + index_B, inside_BS[rows, index_B]


def _search(up_to_BN: Doubles, target_B: Doubles) -> Indices:
    """The first index whose sum exceeds the target; never one with probability 0, whatever the rounding."""
    index_B: Indices = (up_to_BN <= target_B[:, None]).sum(1)
    if index_B.max() == up_to_BN.shape[1]:
        last_B = (up_to_BN >= up_to_BN[:, -1:]).argmax(1)
        index_B = np.minimum(index_B, last_B)
    return index_B


def _draw_truncated(probs_RV: torch.Tensor, uniform_R: Doubles, rules: SamplingRules) -> torch.Tensor:
    """Top-k first, then the nucleus of what that leaves; candidates in falling order of likelihood."""
    vocabulary = probs_RV.shape[1]
    count = rules.most_k or min(_CANDIDATES, vocabulary)
    top_RK, tokens_RK = probs_RV.topk(count)
    if not rules.most_k and count < vocabulary:
        enough_R = (top_RK.sum(-1) >= rules.top_p_R1[:, 0]) | (rules.top_k_R <= count)
        if not bool(enough_R.all()):
            top_RK, tokens_RK = probs_RV.sort(-1, descending=True)
    index_K = torch.arange(top_RK.shape[1], device=top_RK.device)
    top_RK = top_RK.double().masked_fill_(index_K >= rules.top_k_R[:, None], 0.0)
    up_to_RK = top_RK.cumsum(-1)
    total_R1 = probs_RV.sum(-1, keepdim=True, dtype=torch.float64)
    total_R1 = torch.where(rules.top_k_R[:, None] < vocabulary, up_to_RK[:, -1:], total_R1)
    is_kept_RK = up_to_RK - top_RK < rules.top_p_R1 * total_R1
    is_kept_RK[:, 0] = True
    kept_RK = top_RK.masked_fill_(~is_kept_RK, 0.0).cumsum(-1).cpu().numpy()
    index_R = torch.from_numpy(_search(kept_RK, uniform_R * kept_RK[:, -1])).to(tokens_RK.device)
    return tokens_RK.gather(1, index_R[:, None])[:, 0]
