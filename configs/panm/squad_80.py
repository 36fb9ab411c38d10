"""SQuAD 1.1, trained on the 0.8 of the questions with the shorter contexts, as in Table 4 of Le et al. (2024).

lenmem data squad --directory data/squad
lenmem data bert --directory data/bert-base-uncased
lenmem reproduce panm/squad_80 --rows squad_80-bert-f1 squad_80-bert-em squad_80-panm_bert-f1 squad_80-panm_bert-em

BERT-base and BERT-base with PANM's controller, fine-tuned for three epochs; the em rows score the training of the f1
rows. Put the two published files into data/squad, and config.json, model.safetensors and vocab.txt of bert-base-uncased
into data/bert-base-uncased. `lenmem evaluate RUN` also prints F1 and exact match. Not measured: 112 million parameters
need a GPU, and neither the files nor the weights were available.
"""

from ._squad import of_share, rows_of

experiment = of_share(0.8, "panm_bert")
rows = rows_of(0.8)
