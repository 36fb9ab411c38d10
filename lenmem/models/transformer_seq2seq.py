"""The encoder-decoder Transformer (Vaswani et al., NeurIPS 2017, https://arxiv.org/abs/1706.03762).

After Csordás, Irie & Schmidhuber, "The Devil is in the Detail: Simple Tricks Improve Systematic Generalization of
Transformers", EMNLP 2021, https://arxiv.org/abs/2108.12284: post-norm layers with ReLU, the input between a begin and
an end symbol, and an output layer tied to the embedding of fed-back answers. The paper shows that generalisation
depends on details, which are fields here: the position encoding, the scale of embeddings, and weights shared by all
layers (a Universal Transformer without halting). The layers are in `lenmem.nn.transformer` and
`lenmem.nn.transformer_decoder`.

The paper's variants are combinations of `embedding` and `positions`:

    scaledinit   embeddings N(0, 2 / d), positions / sqrt(d)     "position embedding downscaling"
    opennmt      embeddings Xavier, times sqrt(d)
    noscale      embeddings N(0, 1)
    xavier       embeddings Xavier                               with positions="relative" or "none"

With `pointers`, the decoder's last layer is Pointer-Augmented Neural Memory; see `lenmem.models.panm`.

In training, all answer slots are filled in one pass with teacher forcing. Otherwise they are filled one by one with a
cache, each with the most likely symbol.

Cost: O(N^2 d + N d d_FF) for each layer of the encoder, O(M (M + N) d + M d d_FF) for each layer of the decoder, with
d_FF at least d.
"""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax

from lenmem.fields import NonNegativeInt, PositiveInt, UnitInterval
from lenmem.models.panm import AnswerHead
from lenmem.nn.interfaces import SPECIAL, Embedding, EncoderDecoder, FlatModel, after_input, require_spec
from lenmem.nn.interfaces.decoding import answers_as_inputs
from lenmem.nn.linear import Dense, glorot
from lenmem.nn.panm import PointerLayer
from lenmem.nn.positions import ADDED, Numbered, PositionKind
from lenmem.nn.transformer import TransformerEncoder
from lenmem.nn.transformer_decoder import TransformerDecoder
from lenmem.types import Spec

Variant = Literal["scaledinit", "opennmt", "noscale", "xavier"]
Feedback = Literal["open_loop", "teacher_forced"]


class TiedEncoderDecoder(EncoderDecoder):
    """`EncoderDecoder` with tables initialised by `table_init`, and optionally a tied output layer.

    If `tied`, the logit of symbol k is state . row k + b_k, with the table that embeds the fed-back symbols.
    """

    table_init: nn.initializers.Initializer = nn.initializers.normal(1.0)
    """Initial distribution of token tables."""
    tied: bool = False

    def setup(self):
        spec = require_spec(self.spec, self)
        width = self.embedding_size

        def table(spec: Spec, special: int) -> nn.Module:
            if spec.takes_tokens and width is not None:
                return nn.Embed(spec.vocabulary + special, width, embedding_init=self.table_init, **self.dtypes)
            return Embedding(spec, features=width, special=special, **self.dtypes)

        self.embedding = table(spec, SPECIAL)
        if self.feedback == "teacher_forced":
            self.answer_embedding = table(answers_as_inputs(spec), 1)
        else:
            # As large as an embedded symbol: a larger one hides the positions, the slots' only difference.
            self.blank = self.param("blank", self.table_init, (1, width), self.param_dtype)
        if self.tied:
            self.bias = self.param("bias", nn.initializers.zeros, (spec.output_size,), self.param_dtype)
        elif self.head is None:
            self.readout = Dense(spec.output_size, kernel_init=glorot(), **self.dtypes)

    def answer(self, outputs: jax.Array) -> jax.Array:
        """States [..., d] -> logits or values [..., K]."""
        if not self.tied:
            return super().answer(outputs)
        logits = self.answer_embedding.attend(outputs)  # pyright: ignore[reportAttributeAccessIssue]
        return logits[..., : self.bias.size] + self.bias.astype(logits.dtype)


class TransformerSeq2Seq(Numbered, FlatModel):
    """Encoder-decoder Transformer. The defaults are the paper's size for SCAN: 0.99 M parameters."""

    hidden_size: PositiveInt = 128
    """d: width of the states and of the embeddings."""
    encoder_layers: PositiveInt = 3
    """Layers of the encoder."""
    decoder_layers: PositiveInt = 3
    """Layers of the decoder."""
    heads: PositiveInt = 8
    """Number of attention heads per layer; must divide `hidden_size`."""
    feedforward_size: PositiveInt = 256
    """d_FF: hidden width of the feed-forward networks."""
    positions: PositionKind = "absolute"
    """`absolute`: sinusoids. `relative`: Transformer-XL's, in self-attention. `none`: no positions. Or any other
    encoding of `Transformer`."""
    decoder_positions: PositionKind | None = None
    """Positions of the answer slots; None: `positions`."""
    pointers: bool = False
    """The decoder's last layer is PANM (Le et al. 2024, section 3.3): pointers to the encoder's states, and a
    controller of width `hidden_size` that reads the output of the other layers, or the answer so far if there are none.
    Answers are then not `tied`."""
    bits: PositiveInt = 10
    """Bits of the pointers' addresses. There must be more addresses than inputs and delimiters."""
    address_heads: NonNegativeInt = 2
    """Pointers that start at the first, the last and the middle state, in this order; 0 to 3."""
    content_heads: NonNegativeInt = 1
    """Heads that relate states to those at the pointers; 0 to 2."""
    shared_layers: bool = False
    """All layers of the encoder share their weights, and so do those of the decoder."""
    embedding: Variant = "scaledinit"
    """Initialisation of embeddings, and scale of embeddings and positions; see above."""
    tied: bool = True
    """Tie the output layer to the embedding of fed-back answers. Without such an embedding it is a linear map."""
    feedback: Feedback = "teacher_forced"
    """Input of the decoder: the answer so far (in training the target; otherwise its own greedy answer), or nothing."""
    dropout: UnitInterval = 0.1
    """Dropout of attention weights, hidden units, layer outputs, and embeddings with added positions."""

    @nn.nowrap
    def supports(self, spec: Spec) -> str | None:
        """None, or the reason why this model cannot take the task."""
        return after_input(spec)

    @nn.nowrap
    def reader(self, *, answers: int, train: bool) -> nn.Module:
        decoder_positions = self.decoder_positions or self.positions
        forced = self.feedback == "teacher_forced"
        if not forced and not self.pointers and decoder_positions not in ("absolute", *ADDED):
            raise ValueError(
                "with feedback='open_loop' only added positions distinguish answer slots: positions is "
                f"{decoder_positions!r}, and must be 'absolute', 'sinusoidal' or 'learned'"
            )
        spec = require_spec(self.spec, self)
        root = self.hidden_size**0.5
        table_init, input_scale, position_scale = {
            "scaledinit": (nn.initializers.normal(2**0.5 / root), 1.0, 1 / root),
            "opennmt": (glorot(), root, 1.0),
            "noscale": (nn.initializers.normal(1.0), 1.0, 1.0),
            "xavier": (glorot(), 1.0, 1.0),
        }[self.embedding]
        layers: dict[str, Any] = {
            "heads": self.heads,
            "feedforward_size": self.feedforward_size,
            "input_scale": input_scale,
            "position_scale": position_scale,
            "dropout": self.dropout,
            **self.numbering,
            **self.dtypes,
        }
        encoder = TransformerEncoder(
            layers=self.encoder_layers,
            shared_weights=self.shared_layers,
            positions=self.positions,
            initialization="glorot",
            **layers,
            name="encoder",
        )
        layers |= {"positions": decoder_positions, "shared_layers": self.shared_layers}
        decoder: nn.Module
        head = None
        if self.pointers:
            below = TransformerDecoder(self.hidden_size, layers=self.decoder_layers - 1, **layers, parent=None)
            heads: dict[str, Any] = {"address_heads": self.address_heads, "content_heads": self.content_heads}
            heads |= {"hidden_size": self.hidden_size, "bits": self.bits, **self.dtypes}
            decoder = PointerLayer(below, **heads, name="decoder")
            head = AnswerHead(spec.output_size, **self.dtypes, name="head")
        else:
            decoder = TransformerDecoder(self.hidden_size, layers=self.decoder_layers, **layers, name="decoder")
        return TiedEncoderDecoder(
            encoder=encoder,
            decoder=decoder,
            spec=spec,
            embedding_size=self.hidden_size,
            feedback=self.feedback,
            head=head,
            delimiters=True,
            table_init=table_init,
            tied=self.tied and forced and spec.outputs == "tokens" and not self.pointers,
            **self.dtypes,
        )
