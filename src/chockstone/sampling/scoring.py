"""Scoring: log-probabilities of the prompt's own tokens, collected during prefill.

Shapes: P prompt positions, N positions of one chunk, V vocabulary, K alternatives.
Logits at position i score the token at position i + 1; the first token has no score.
"""

from __future__ import annotations

import numpy as np
import torch

from chockstone.wire.codecs.samples import Floats, SampleRequest, TopK
from chockstone.wire.failures import ServerFailure

EMPTY_LOGPROB = -99999.0


class PromptScores:
    """The scores that a request asks for. ``add`` is called in the order of positions; complete after prefill."""

    def __init__(self, request: SampleRequest, *, seed: int) -> None:
        length = len(request.prompt)
        self._random = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed % 2**64)))
        self._request = request
        self._prompt = torch.from_numpy(request.prompt.astype(np.int64))
        self._first_shown = 1
        if request.prompt_logprobs_last_n is not None:
            self._first_shown = max(1, length - request.prompt_logprobs_last_n)
        self.first = self._first_needed(length)
        self.logprobs: Floats | None = np.full(length, np.nan, np.float32) if request.prompt_logprobs else None
        self.topk = _empty_topk(length, request.topk_prompt_logprobs)
        self.alternatives = _empty_topk(length - 1, request.prompt_alt_tokens_k)
        self.targets: Floats | None = None
        if request.targets is not None:
            self.targets = np.zeros(request.targets.tokens.shape, np.float32)

    def _first_needed(self, length: int) -> int:
        """The first position whose logits are needed; ``length`` if none are."""
        request = self._request
        if request.prompt_alt_tokens_k or request.targets is not None:
            return 0
        if request.prompt_logprobs or request.topk_prompt_logprobs:
            return self._first_shown - 1
        return length

    def add(self, start: int, logits_NV: torch.Tensor) -> None:
        """Logits of positions ``start`` and after, none before ``first`` nor at the last position."""
        stop = start + len(logits_NV)
        logprobs_NV = logits_NV.log_softmax(-1)
        next_N = self._prompt[start + 1 : stop + 1].to(logprobs_NV.device)
        chosen_N = logprobs_NV.gather(1, next_N[:, None])[:, 0].cpu().numpy()
        if np.isnan(chosen_N).any():
            raise ServerFailure(
                f"the model's logits are not finite at prompt position {start + int(np.isnan(chosen_N).argmax())}; "
                "the weights of this sampler hold NaN or infinity, or overflow on this prompt"
            )
        skip = max(0, self._first_shown - 1 - start)
        if self.logprobs is not None:
            self.logprobs[start + 1 + skip : stop + 1] = chosen_N[skip:]
        if self.topk is not None:
            top_NK, tokens_NK = logprobs_NV[skip:].topk(self._request.topk_prompt_logprobs)
            self.topk.tokens[start + 1 + skip : stop + 1] = tokens_NK.cpu().numpy()
            self.topk.logprobs[start + 1 + skip : stop + 1] = top_NK.cpu().numpy()
        if self.alternatives is not None:
            drawn_NK = self._draw(logits_NV)
            self.alternatives.tokens[start:stop] = drawn_NK.cpu().numpy()
            self.alternatives.logprobs[start:stop] = logprobs_NV.gather(1, drawn_NK).cpu().numpy()
        if self.targets is not None and self._request.targets is not None:
            wanted_NK = torch.from_numpy(self._request.targets.tokens[start:stop]).to(logprobs_NV.device)
            found_NK = logprobs_NV.gather(1, wanted_NK.clamp(min=0)).masked_fill_(wanted_NK < 0, 0.0)
            self.targets[start:stop] = found_NK.cpu().numpy()

    def _draw(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """Tokens for each position at the request's temperature, independent of each other: [N, K]."""
        k, temperature = self._request.prompt_alt_tokens_k, self._request.params.temperature
        if temperature == 0:
            return logits_NV.argmax(-1, keepdim=True).expand(-1, k)
        up_to_NV = (logits_NV / temperature).softmax(-1).double().cumsum(-1)
        uniform_NK = torch.from_numpy(self._random.random((len(logits_NV), k))).to(up_to_NV.device)
        drawn_NK = torch.searchsorted(up_to_NV, uniform_NK * up_to_NV[:, -1:], right=True)
        return drawn_NK.clamp_(max=logits_NV.shape[1] - 1)


def _empty_topk(positions: int, k: int) -> TopK | None:
    if not k:
        return None
    return TopK(np.zeros((positions, k), np.int32), np.full((positions, k), EMPTY_LOGPROB, np.float32))
