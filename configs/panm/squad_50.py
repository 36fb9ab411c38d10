"""SQuAD 1.1, the questions about the shorter 0.5 of the contexts learnt, as in Table 4 of Le et al. (2024).

lenmem data squad --directory data/squad
lenmem data bert --directory data/bert-base-uncased
lenmem reproduce panm/squad_50 --rows squad_50-bert-f1 squad_50-bert-em squad_50-panm_bert-f1 squad_50-panm_bert-em

BERT-base and BERT-base with PANM's controller, fine-tuned for three epochs; the em rows score the training of the f1
rows. The two published files are in data/squad, config.json, model.safetensors and vocab.txt of bert-base-uncased in
data/bert-base-uncased. `lenmem evaluate RUN` prints F1 and exact match too. Not measured: 112 million parameters need a
GPU, and neither files nor weights were on this machine.
"""

from ._squad import of_share, rows_of

experiment = of_share(0.5, "panm_bert")
rows = rows_of(0.5)
