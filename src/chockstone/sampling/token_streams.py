"""Token streams: the tokens of streamed requests that were not sent yet."""

from __future__ import annotations

from chockstone.sampling.job import Job
from chockstone.wire.codecs.sampled_pieces import SampledPiece


class TokenStreams:
    def __init__(self) -> None:
        self._sent: dict[Job, list[int]] = {}  # tokens of each sample that were taken

    def add(self, job: Job) -> None:
        self._sent[job] = [0] * len(job.sequences)

    def remove(self, job: Job) -> None:
        self._sent.pop(job, None)

    def __bool__(self) -> bool:
        return bool(self._sent)

    def take(self) -> list[tuple[str, SampledPiece]]:
        """What was generated since the last call, with the keys of the requests."""
        return [(job.key, piece) for job, sent in self._sent.items() for piece in _take_from(job, sent)]


def _take_from(job: Job, sent: list[int]) -> list[SampledPiece]:
    pieces: list[SampledPiece] = []
    for sequence in job.sequences[: job.started]:
        begin, end = sent[sequence.index], len(sequence.tokens)
        if begin < end:
            tokens, logprobs = tuple(sequence.tokens[begin:]), tuple(sequence.logprobs[begin:])
            pieces.append(SampledPiece(sequence.index, tokens, logprobs, sequence.stop_reason, begin))
            sent[sequence.index] = end
    return pieces
