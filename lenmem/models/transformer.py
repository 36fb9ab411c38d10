"""The Transformer (Vaswani et al., NeurIPS 2017, https://arxiv.org/abs/1706.03762), as an encoder.

Post-norm attention layers process the input and a mask token for each answer slot in one pass, and the answer is read
at the masks. If a task has a single answer slot, the answer is read at an end token. By default positions are absolute
and sinusoidal; with these the network fails beyond its training length. `positions` selects other encodings.
`shared_weights` applies one layer repeatedly, as in a Universal Transformer (Dehghani et al. 2019).

Cost: O(layers ((N + M)^2 d + (N + M) d (d + feedforward_size))).
"""

from __future__ import annotations

from typing import Literal

import flax.linen as nn

from lenmem.fields import PositiveFloat, PositiveInt, UnitInterval
from lenmem.nn.attention import Weighting
from lenmem.nn.interfaces import FlatModel, require_spec, sequential
from lenmem.nn.interfaces.encoding import GIVES_NONE
from lenmem.nn.positions import SINUSOID_STD, Numbered, PositionEncoding
from lenmem.nn.transformer import GivenPositionsEncoder, TransformerEncoder
from lenmem.types import Spec


class Transformer(Numbered, FlatModel):
    """Transformer encoder with mask tokens for the answer."""

    hidden_size: PositiveInt = 128
    """d: width of the states and of the embedding."""
    layers: PositiveInt = 4
    """Number of layers."""
    heads: PositiveInt = 4
    """Number of attention heads per layer; must divide `hidden_size`."""
    feedforward_size: PositiveInt = 512
    """Hidden width of the feed-forward networks."""
    shared_weights: bool = False
    """Whether all layers share their weights."""
    dropout: UnitInterval = 0.1
    """Dropout of attention weights, hidden units, layer outputs and embeddings."""
    positions: Literal[PositionEncoding, "given"] = "sinusoidal"
    """Position encoding. Added to the states: `sinusoidal`; `learned`; or `given`, which is learned for positions that
    the task gives, and in training shifts them at random, up to `max_positions`. In the attention: `relative`
    (Transformer-XL), `rotary`, `alibi`, `t5`, `fire`. Or `none`."""
    attention: Weighting = "softmax"
    """The weights of attention: `softmax`; `stick_breaking` (Tan et al. 2025), which takes the nearest match on the
    left; `forgetting` (Lin et al. 2025), where input-dependent gates reduce the weights of earlier positions."""
    column: Literal["last", "first"] = "last"
    """Whether a single answer is read at the end token or at the begin token, which sees the input only in softmax
    attention."""
    position_std: PositiveFloat = SINUSOID_STD
    """Initial standard deviation of `learned` and `given` positions; the default is that of sinusoids."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        ordered = spec.alignment == "aligned" or spec.single_answer
        if self.positions == "given" and (ordered or spec.position_rule is None):
            return GIVES_NONE
        return super().supports(spec)

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        given = self.positions == "given"
        if self.column == "first" and self.attention != "softmax":
            raise ValueError(f"{self.attention} attention looks only to the left, so column must be 'last'")
        encoder = (GivenPositionsEncoder if given else TransformerEncoder)(
            layers=self.layers,
            heads=self.heads,
            feedforward_size=self.feedforward_size,
            shared_weights=self.shared_weights,
            causal=require_spec(self.spec, self).causal,
            dropout=self.dropout,
            positions="learned" if self.positions == "given" else self.positions,
            position_std=self.position_std,
            weighting=self.attention,
            **self.numbering,
            **self.dtypes,
            name="encoder",
        )
        return sequential(encoder, self, embedding_size=self.hidden_size, column=self.column)
