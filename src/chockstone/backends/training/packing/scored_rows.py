# tensors carry their axes
"""Scored rows: rows of the output layer, and the positions that read their log-probabilities.

In a packed batch several positions may read one row: those of a shared prefix. Otherwise each position has its row.

Shapes: S rows, R positions of all sequences in their order, K targets.
"""

from __future__ import annotations

import torch

Readers = slice | torch.Tensor  # which of the R positions


class ScoredRows:
    def __init__(self, rows_R: torch.Tensor | None) -> None:
        """``rows_R``: the row that each position reads. None: its own."""
        self._rows_R = rows_R

    def readers(self, rows: slice) -> Readers:
        """The positions that read one of these rows, in their order."""
        if self._rows_R is None:
            return rows
        is_read_R = (self._rows_R >= rows.start) & (self._rows_R < rows.stop)
        return torch.nonzero(is_read_R).squeeze(1)

    def read(self, values_SK: torch.Tensor, readers: Readers) -> torch.Tensor:
        """What these positions read."""
        return values_SK[readers if self._rows_R is None else self._rows_R[readers]]

    def write(self, values_RK: torch.Tensor, count: int) -> torch.Tensor:
        """``count`` rows with the values of their readers, which are equal for all readers of a row."""
        if self._rows_R is None:
            return values_RK
        values_SK = values_RK.new_empty(count, values_RK.shape[1])
        values_SK[self._rows_R] = values_RK
        return values_SK

    def add(self, values: torch.Tensor, readers: Readers, rows: slice) -> torch.Tensor:
        """The sums of the values of each row's readers, always added in the same order."""
        if self._rows_R is None:
            return values
        places = self._rows_R[readers] - rows.start
        sums = values.new_zeros(rows.stop - rows.start, values.shape[1])
        if values.device.type == "cpu":
            return sums.index_add_(0, places, values)
        return sums.index_put_((places,), values, accumulate=True)  # on a GPU this one sorts, and index_add_ races
