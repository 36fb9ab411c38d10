"""A document as one tensor of fixed size, read by a sentence and a word, and changed in place.

python docs/examples/document_memory.py      writes docs/pictures/document_memory.png
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from lenmem import ops

TEXT = (
    "the head moves one cell to the right",
    "the key finds the value it was written with",
    "a longer tape needs no new weight",
)
SENTENCES = [sentence.split() for sentence in TEXT]
WORDS = sorted({word for sentence in SENTENCES for word in sentence})
LONGEST = max(map(len, SENTENCES))


def vectors(seed: int, count: int, width: int, orthogonal: bool = True) -> jax.Array:
    """Unit vectors: orthogonal ones (if there is room for them), or random ones."""
    rows = jax.random.normal(jax.random.key(seed), (count, width))
    return jnp.linalg.qr(rows.T)[0].T if orthogonal else ops.unit(rows)


def names(reads: jax.Array, words: jax.Array) -> list[str]:
    """The words nearest to vectors."""
    return [WORDS[number] for number in np.argmax(reads @ words.T, axis=-1)]


def found(width: int, seed: int, sentences: int = 12, length: int = 12, vocabulary: int = 100) -> float:
    """Fraction of the words of a random document that are read back with random keys of some width."""
    keys = [vectors(seed + n, count, width, orthogonal=False) for n, count in enumerate((sentences, length))]
    words = vectors(seed + 2, vocabulary, 64, orthogonal=False)
    text = jax.random.randint(jax.random.key(seed + 3), (sentences, length), 0, vocabulary)
    document = ops.tensor_memory((keys[0], jnp.broadcast_to(keys[1], (sentences, length, width))), words[text])
    read = jax.vmap(lambda s: jax.vmap(lambda w: ops.nested_read(document, s, w))(keys[1]))(keys[0])
    return float(jnp.mean(jnp.argmax(read @ words.T, axis=-1) == text))


# One key for each sentence and one for each place in a sentence; a random vector for each word.
sentence_keys, place_keys = vectors(0, len(TEXT), 8), vectors(1, LONGEST, 16)
words = vectors(2, len(WORDS), 64, orthogonal=False)
ids = np.array([[WORDS.index(word) for word in own + own[:1] * (LONGEST - len(own))] for own in SENTENCES])
real = np.arange(LONGEST) < np.array([[len(own)] for own in SENTENCES])
keys = sentence_keys, jnp.broadcast_to(place_keys, (len(TEXT), LONGEST, 16))
document = ops.tensor_memory(keys, words[ids], mask=jnp.asarray(real))  # 64 x 16 x 8, for any number of words

# Nested reads: a sentence query gives a matrix, a word query on top of it a word.
second = ops.nested_read(document, sentence_keys[1])
third_word = ops.nested_read(document, sentence_keys[1], place_keys[2])
read = [names(jnp.stack([ops.nested_read(document, s, w) for w in place_keys]), words)[: len(own)]
        for s, own in zip(sentence_keys, SENTENCES, strict=True)]  # fmt: skip

# One word is replaced, by a write under both keys; no other word changes.
changed = ops.nested_write(document, (sentence_keys[0], place_keys[7]), words[WORDS.index("tape")])
reread = names(jnp.stack([ops.nested_read(changed, sentence_keys[0], w) for w in place_keys]), words)[:8]


def draw(widths: tuple[int, ...], documents: int, path: Path) -> np.ndarray:
    """Cosines of every read with every word, and the words found with random keys: float[widths, documents]."""
    figure = Figure(figsize=(9.6, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    reads = [ops.nested_read(document, s, w) for s, own in zip(sentence_keys, SENTENCES, strict=True)
             for w in place_keys[: len(own)]]  # fmt: skip
    image = left.imshow(ops.unit(jnp.stack(reads)) @ words.T, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    left.set_xticks(range(len(WORDS)), WORDS, rotation=90, fontsize=7)
    left.set_yticks(range(len(reads)), [word for own in SENTENCES for word in own], fontsize=7)
    for end in np.cumsum([len(own) for own in SENTENCES])[:-1]:
        left.axhline(end - 0.5, color="black", linewidth=0.8)
    left.set(xlabel="word", ylabel="place that is read, by the word written there")
    figure.colorbar(image, ax=left, label="cosine of what is read and a word", shrink=0.7)
    shares = np.array([[found(width, 10 * seed) for seed in range(documents)] for width in widths])
    right.plot(widths, shares.mean(axis=1), "o-")
    right.fill_between(widths, shares.min(axis=1), shares.max(axis=1), alpha=0.2)
    right.set(xscale="log", xticks=widths, xticklabels=widths, ylim=(0, 1.02), xlabel="width of random keys")
    right.set_ylabel("words found, of 12 sentences of 12 words")
    right.minorticks_off()
    figure.savefig(path, dpi=150)
    return shares


if __name__ == "__main__":
    print(*(" ".join(sentence) for sentence in read), f"changed: {' '.join(reread)}", sep="\n")
    key_widths = (2, 4, 8, 16, 32, 64)
    shares = draw(key_widths, 5, Path(__file__).parents[1] / "pictures/document_memory.png")
    for width, share in zip(key_widths, shares.mean(axis=1), strict=True):
        print(f"random keys of width {width:2}: {100 * share:5.1f}% of the words found")
