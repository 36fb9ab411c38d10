"""One-line descriptions and sources of the models, for `lenmem list` and the table of networks in the documentation."""

from __future__ import annotations

ABOUT: dict[tuple[str, ...], tuple[str, str]] = {
    ("lantm", "lantm_s"): (
        "Lie-access memory: heads shift over the plane, reads by inverse-square distance or by a softmax (`_s`)",
        "Yang & Rush 2017",
    ),
    ("slantm", "slantm_s"): ("the same on the sphere; heads move by rotations", "Yang & Rush 2017"),
    ("ram", "ram_tape"): (
        "random-access memory with keys from the controller, and with a tape head in addition",
        "baselines of the same paper",
    ),
    ("lstm", "gru"): ("recurrent networks of one or more layers, which read and then answer", "baselines"),
    ("elman",): ("Elman network with ReLU", "Delétang et al. 2023"),
    ("attention",): ("recurrent encoder, decoder with additive attention", "baseline"),
    ("location_attention", "hybrid_attention"): (
        "the same with attention by location, and by both content and location",
        "baselines of Le et al. 2024",
    ),
    ("pointer_network",): ("answers by pointing at tokens of the input", "Vinyals et al. 2015"),
    ("nam_tm", "nam_tm_no_jump"): (
        "NAM Turing machine: tapes written and read by outer products, heads that move left, stay, move right or jump",
        "Nam & Seo 2023",
    ),
    ("lsam", "lsam_cell"): (
        "an LSTM whose cell state is a memory matrix: the paper's two-layer model, and a single layer",
        "Nam & Seo 2023",
    ),
    ("nam_transformer", "linear_transformer"): (
        "Transformer on normalised outer-product attention, and on linear attention",
        "Nam & Seo 2023",
    ),
    ("bert", "universal_transformer", "lstm_attention"): (
        "Transformer of BERT's shape, Universal Transformer, and two bidirectional LSTMs with attention between them",
        "baselines of the same paper",
    ),
    ("transformer", "transformer_none", "transformer_learned"): (
        "post-norm Transformer encoder with sinusoidal positions, without positions, and with learned positions",
        "baselines",
    ),
    ("transformer_xl", "transformer_rotary", "transformer_alibi", "transformer_t5", "transformer_fire"): (
        "the same with positions in the attention: Transformer-XL's, RoPE, ALiBi, T5's buckets, FIRE",
        "Dai et al. 2019, Su et al. 2021, Press et al. 2022, Raffel et al. 2020, Li et al. 2024",
    ),
    ("transformer_randomized",): (
        "`transformer_xl` with random positions (`random_positions`, a field of all Transformers but "
        "`looped_transformer`, `bert_span` and `bert_span_panm`)",
        "Ruoss et al. 2023",
    ),
    ("transformer_stick_breaking", "transformer_forgetting"): (
        "Transformer without positions; its attention takes the nearest match on the left, or fades by forget gates",
        "Tan et al. 2025, Lin et al. 2025",
    ),
    ("looped_transformer",): ("one causal layer, applied once for every column of a row", "Fan et al. 2024"),
    ("transformer_seq2seq", "transformer_seq2seq_relative", "transformer_seq2seq_universal"): (
        "encoder-decoder Transformer; with relative positions; with weights shared by all layers",
        "Csordás et al. 2021",
    ),
    ("ndr",): (
        "Neural Data Router: one layer applied repeatedly, with a copy gate and attention to the nearest match",
        "Csordás et al. 2022",
    ),
    ("ndr_relative_gate", "ndr_absolute_relative_gate"): (
        "the same with attention by relative positions, and by a gated mixture of relative and absolute positions",
        "ablations of the same paper",
    ),
    ("transformer_shared", "transformer_relative", "transformer_geometric"): (
        "Transformers with weights shared by all layers and without a gate: absolute, relative, geometric attention",
        "baselines of the same paper",
    ),
    ("act", "act_relative", "act_geometric"): (
        "the same with adaptive computation time by Graves' rule",
        "baselines of the same paper",
    ),
    ("act_universal", "act_universal_relative", "act_universal_geometric"): (
        "the same by the Universal Transformer's rule",
        "baselines of the same paper",
    ),
    ("dnc", "dnc_stateless"): (
        "differentiable neural computer: writes to free or similar slots, reads by content or in the order of writing; "
        "with a stateless controller",
        "Graves et al. 2016",
    ),
    ("dnc_peephole", "dnc_compression", "dnc_regularized", "dnc_compression_regularized"): (
        "with a peephole LSTM; the same with constraints on the controller's states",
        "Ofner & Kern 2021",
    ),
    ("dnc_lstm_compression", "dnc_lstm_regularized", "dnc_lstm_compression_regularized"): (
        "these constraints on a plain LSTM",
        "ablations of the same paper",
    ),
    ("dnc_improved",): (
        "the DNC with masked lookup, erasure of freed slots, and sharpened links",
        "Csordás & Schmidhuber 2019",
    ),
    ("ntm",): ("neural Turing machine: heads that look up by content and shift", "Graves et al. 2014"),
    ("lstm_classifier", "bilstm_classifier"): (
        "LSTMs in one and in two directions that answer from their final states",
        "baselines of Csordás et al. 2022",
    ),
    ("panm", "panm_paper", "panm_published"): (
        "pointers that move over physical addresses and never see data: our defaults, the paper's text, its code",
        "Le et al. 2024",
    ),
    ("panm_beyond",): ("PANM whose only state is its pointers, for lengths far beyond training", "ours"),
    ("transformer_panm",): ("encoder-decoder Transformer with PANM as its last layer", "Le et al. 2024"),
    ("bert_span", "bert_span_panm"): (
        "BERT that answers with a span of its input, with weights from a directory; and with PANM's controller",
        "Devlin et al. 2019, Le et al. 2024",
    ),
    ("neural_stack",): ("LSTM with a stack whose pushes and pops have a strength", "Grefenstette et al. 2015"),
    ("stack_rnn",): (
        "Elman network with a stack that is the average of its pushed and its popped version",
        "Joulin & Mikolov 2015, Suzgun et al. 2019",
    ),
    ("stack_rnn_vector", "stack_lstm"): (
        "Elman network with ReLU, and LSTM, with stacks of vectors and a no-op",
        "Delétang et al. 2023",
    ),
    ("tape_rnn",): (
        "Elman network with ReLU and circular tapes, which move by one cell or by the length of the input",
        "Delétang et al. 2023",
    ),
    ("nram",): ("registers of random integers, connected to fixed modules by a controller", "Kurach et al. 2016"),
    ("two_way", "two_way_indexed"): (
        "finite-state control with heads that walk over the input; rounded to an automaton after training; "
        "with an index by value (`_indexed`)",
        "ours",
    ),
    ("answer_automaton",): ("a table with the next answer for each input and last answer", "ours, after Jordan 1986"),
    ("pushdown",): (
        "finite-state control with a stack of symbols; rounded to a pushdown automaton after training",
        "ours",
    ),
    ("esbn",): ("an LSTM that sees keys bound to inputs, but never the inputs", "Webb et al. 2021"),
    ("delta_net", "delta_net_negative"): (
        "layers of the delta rule, which erases before it writes; with negative eigenvalues (`_negative`)",
        "Schlag et al. 2021, Yang et al. 2024, Grazzi et al. 2024",
    ),
    ("gated_delta_net", "delta_product"): (
        "the same with decay and an output gate; with two writes per position",
        "Yang et al. 2024, Siems et al. 2025",
    ),
    ("mamba2",): ("state space layers with one scalar decay per head", "Dao & Gu 2024"),
    ("mlstm", "slstm"): (
        "LSTM layers with exponential gates: with a memory matrix, and with scalar cells that see the last output",
        "Beck et al. 2024",
    ),
}
"""names -> (description, source)."""
