"""LSTM and GRU without memory: the baselines of most papers.

A stack of recurrent layers reads `[begin | inputs | delimiter | blanks]` in one scan and answers from the delimiter on.
All information about the input must pass through a state of fixed width. This is the baseline of
Yang & Rush, "Lie-Access Neural Turing Machines", ICLR 2017 (1-4 LSTM layers of 256, embedding 128), and of most later
work. LSTM: Hochreiter & Schmidhuber 1997; GRU: Cho et al. 2014. Cost per step: O(layers H^2).
"""

from __future__ import annotations

import flax.linen as nn

from lenmem.fields import PositiveInt, UnitInterval
from lenmem.nn.cells import GRUCell, LSTMCell, Stacked
from lenmem.nn.interfaces import FlatModel, recurrent
from lenmem.nn.linear import Init


class LSTM(FlatModel):
    """LSTM with one or more layers."""

    hidden_size: PositiveInt = 256
    """Number of cells of each layer."""
    layers: PositiveInt = 1
    """Number of layers; each reads the outputs of the one below."""
    embedding_size: PositiveInt | None = 128
    """Width of the input embedding; None: the input itself, tokens one-hot."""
    dropout: UnitInterval = 0.0
    """Dropout between layers."""
    learned_start: bool = True
    """Learn the initial state; otherwise it is zero."""
    initialization: Init = "fan_in"
    """The weights and biases of the cells. `fan_in`: Torch's default. `uniform`: U(-1, 1). In both, an LSTM's forget
    biases are 1."""

    cell_type = LSTMCell

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        cells = [
            self.cell_type(
                self.hidden_size,
                initialization=self.initialization,
                learned_start=self.learned_start,
                **self.dtypes,
                parent=None,
            )
            for _ in range(self.layers)
        ]
        return recurrent(Stacked(cells, dropout=self.dropout, name="cell"), self, begin=True)


class GRU(LSTM):
    """GRU with one or more layers."""

    cell_type = GRUCell
