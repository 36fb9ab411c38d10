"""CTL, arithmetic and ListOps: published numbers, labels by recursive parsers, sampling rules by a recursive twin."""

from __future__ import annotations

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import tasks
from lenmem.data import ctl, trees
from lenmem.data import expressions as languages
from lenmem.tasks.base import draw
from lenmem.tasks.buckets import _permuted
from lenmem.tasks.rows import RowTask
from tests.learning import briefly

# as printed in the fact sheet
PRINTED = {
    "a": [6, 1, 5, 7, 0, 4, 2, 3],
    "b": [6, 5, 7, 3, 2, 0, 4, 1],
    "c": [1, 5, 7, 3, 0, 4, 6, 2],
    "d": [4, 2, 1, 5, 0, 7, 3, 6],
    "e": [7, 5, 6, 4, 0, 3, 2, 1],
    "f": [4, 6, 0, 3, 2, 5, 7, 1],
    "g": [5, 1, 0, 4, 2, 6, 7, 3],
    "h": [2, 3, 0, 1, 4, 5, 6, 7],
    "i": [6, 5, 0, 4, 2, 3, 7, 1],
    "j": [7, 4, 2, 5, 3, 1, 0, 6],
    "k": [4, 6, 2, 1, 3, 0, 5, 7],
}
CTL_TOKENS = (*(f"{symbol:03b}" for symbol in range(8)), *PRINTED)
SMALL = {"train_size": 400, "held_out_size": 12, "curve_size": 2}


@pytest.fixture(autouse=True)
def directory(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LENMEM_CACHE", str(tmp_path_factory.getbasetemp() / "ndr"))


def make(name, **fields) -> RowTask:
    task = tasks.make(name, **fields)
    assert isinstance(task, RowTask)
    return task


def words_of(tokens, names) -> list[str]:
    return [names[token] for token in tokens]


def look_up(words: list[str]) -> int:
    """The label of `b a d 101` or `101 d a b`."""
    words = words if words[0].isdigit() else words[::-1]
    value = int(words[0], 2)
    for word in words[1:]:
        value = PRINTED[word][value]
    return value


def parse_arithmetic(words: list[str]) -> tuple[int, int, int, int]:
    """(value, depth, depth of the left operand, of the right one); consumes the words."""
    word = words.pop(0)
    if word != "(":
        return int(word), 0, -1, -1
    left = parse_arithmetic(words)
    operator = words.pop(0)
    right = parse_arithmetic(words)
    assert words.pop(0) == ")"
    value = left[0] * right[0] if operator == "*" else left[0] + right[0]
    assert operator in "+*"
    return value % 10, 1 + max(left[1], right[1]), left[1], right[1]


def parse_listops(words: list[str]) -> tuple[int, int]:
    """(value, dependency depth); consumes the words."""
    word = words.pop(0)
    if word.isdigit():
        return int(word), 0
    arguments = []
    while words[0] != "]":
        arguments.append(parse_listops(words))
    words.pop(0)
    assert 2 <= len(arguments) <= 5
    ranked = sorted(arguments, key=lambda argument: argument[0])  # stable: equal values stay in their order
    middle = ranked[(len(ranked) - 1) // 2 : len(ranked) // 2 + 1]
    chosen = {
        "[MIN": ranked[:1],
        "[MAX": [next(argument for argument in arguments if argument[0] == ranked[-1][0])],
        "[MED": middle,
        "[SM": arguments,
    }[word]
    total = sum(value for value, _ in chosen)
    return (total % 10 if word == "[SM" else total // len(chosen)), 1 + max(depth for _, depth in chosen)


PARSERS = {
    "arithmetic": (languages.ARITHMETIC_TOKENS, lambda words: parse_arithmetic(words)[:2]),
    "listops": (languages.LISTOPS_TOKENS, parse_listops),
}


def expressions(rows) -> list[bytes]:
    return [row[:n].tobytes() for row, n in zip(rows.inputs, rows.input_lengths, strict=True)]


def check_rows(name, rows, every=1):
    """Labels and depths of each (or every n-th) row."""
    names, parse = PARSERS[name]
    for row, n, answer in list(zip(rows.inputs, rows.input_lengths, rows.answers, strict=True))[::every]:
        words = words_of(row[:n], names)
        assert parse(words) == tuple(answer), words_of(row[:n], names)
        assert not words, "one expression and nothing after it"
        assert not row[n:].any()


def test_parsers():
    def listops(text: str) -> tuple[int, int]:
        return parse_listops(text.split())

    assert parse_arithmetic([*"((4*7)+2)"]) == (0, 2, 1, 0)
    assert look_up(["b", "a", "d", "101"]) == look_up(["101", "d", "a", "b"]) == PRINTED["b"][PRINTED["a"][7]]
    assert listops("[MED 4 8 5 [MAX 8 4 9 ] ]") == (6, 1), "5 and 8 are in the middle, 9 is not"
    assert listops("[MIN 4 [MAX 4 1 ] ]") == (4, 1), "the first of equal ones"
    assert listops("[MAX [SM 5 [MED 9 7 ] ] 3 3 ]") == (3, 3)
    assert listops("[MAX 3 [SM 5 [MED 9 7 ] ] 3 ]") == (3, 1)
    assert listops("[SM 1 [MED 9 [MIN 7 8 ] ] ]") == (9, 3)


# ---- compositional table lookup


def test_tables_are_the_published_ones():
    np.testing.assert_array_equal(ctl.tables(), list(PRINTED.values()))


def test_ctl_sets():
    """Sizes and histograms of the fact sheet."""
    tables = make("ctl").tables()
    assert {split: len(rows) for split, rows in tables.items()} == {
        "train": 53_704,
        "validation": 4_000,
        "iid": 4_000,
        "deeper_validation": 1_000,
        "test": 1_000,
    }
    unique = {split: set(expressions(rows)) for split, rows in tables.items()}
    assert len(unique["train"]) == 53_224
    held = [unique[split] for split in tables if split != "train"]
    assert len(set.union(*held)) == sum(map(len, held)) == 10_000
    assert not set.union(*held) & unique["train"]
    histograms = {split: dict(collections.Counter(rows.answers[:, 1].tolist())) for split, rows in tables.items()}
    assert histograms["test"] == {9: 514, 10: 486}
    assert histograms["deeper_validation"] == {6: 330, 7: 327, 8: 343}
    assert histograms["train"][1] == 568
    assert [sum(histograms[split].get(depth, 0) for split in ("train", "validation", "iid")) for depth in (2, 5)] == [
        480,
        32_296,
    ]
    for split, rows in tables.items():
        step = 41 if split == "train" else 11
        for row, n, answer in list(zip(rows.inputs, rows.input_lengths, rows.answers, strict=True))[::step]:
            words = words_of(row[:n], CTL_TOKENS)
            assert words[-1].isdigit() and n - 1 == answer[1]
            assert look_up(words) == answer[0]
            assert answer[1] == 1 or not {"j", "k"} & set(words)
            assert not row[n:].any()
    singles = collections.Counter(
        " ".join(words_of(row[:2], CTL_TOKENS)) for row in tables["train"].inputs[tables["train"].input_lengths == 2]
    )
    assert len(singles) == 88 and singles["a 000"] == 1 and singles["j 101"] == singles["k 111"] == 31


def test_ctl_forward_is_the_mirror_image():
    backward, forward = make("ctl").tables(), make("ctl", order="forward").tables()
    for split in ("train", "test"):
        for left, right in zip(expressions(backward[split])[:200], expressions(forward[split])[:200], strict=True):
            assert left == right[::-1]
        np.testing.assert_array_equal(backward[split].answers, forward[split].answers)
    moved = make("ctl", data_seed=1).tables()
    assert set(expressions(moved["test"])) == set(expressions(backward["test"])), "published draws"
    assert set(expressions(moved["iid"])) != set(expressions(backward["iid"])), "our own"


def test_ctl_examples_of_one_function_are_uniform():
    """Training repeats those of j and k, which a curve must not."""
    task = make("ctl")
    singles = task.held_out(task.tables())
    singles = singles[task.row_lengths(singles) == 1]
    assert len(singles) == len(set(expressions(singles))) == 88


def test_ctl_split_of_the_shallow_baselines():
    task = make("ctl", validation_depth=7)
    tables = task.tables()
    assert task.splits["deeper_validation"] == (6, 7) and task.test_lengths == (8, 10)
    assert np.bincount(tables["test"].answers[:, 1])[8:].tolist() == [342, 345, 313]


@pytest.mark.parametrize("order", ["backward", "forward"])
def test_ctl_at_any_depth(order):
    task = make("ctl", order=order)
    lengths = jnp.array([1, 2, 5, 6, 10, 16, 29, 30])
    both = briefly(lambda key, lengths: [draw(task, key, lengths, capacity) for capacity in (30, 40)])
    tight, wide = jax.tree.map(np.asarray, both(jax.random.key(0), lengths))
    np.testing.assert_array_equal(wide.inputs[:, :31], tight.inputs)
    np.testing.assert_array_equal(wide.targets, tight.targets)
    assert not wide.inputs[:, 31:].any() and not wide.input_mask[:, 31:].any()
    train = set(expressions(task.tables()["train"]))
    for row, mask, target, length in zip(tight.inputs, tight.input_mask, tight.targets, lengths, strict=True):
        words = words_of(row[mask], CTL_TOKENS)
        assert len(words) == length + 1 and words[0].isdigit() is (order == "forward")
        assert look_up(words) == target[0]
        assert (row[mask].astype(np.uint8).tobytes() in train) is bool(length == 1)
    small = jax.eval_shape(lambda: task.sample(jax.random.key(0), 3, 3))
    assert small.inputs.shape == (4,) and task.shapes(3) == (4, 1)


# ---- trees


def test_labels_of_trees():
    """Values and depths of all drawn trees, at all depths, also after many wraps, in both versions."""
    for name, clean in ((name, clean) for name in PARSERS for clean in (False, True)):
        language = languages.listops(0.3, 5, clean) if name == "listops" else languages.arithmetic(0.3, clean)
        names, parse = PARSERS[name]
        for lowest, highest in ((2, 6), (8, 9)):
            forest = trees.Forest(language, np.random.default_rng(0))
            roots = forest.draw(400, lowest, highest, 50)
            tokens = forest.write(roots)
            assert tokens.dtype == np.uint8
            ends = np.cumsum(roots.size)
            for i, tree in enumerate(np.split(tokens, ends[:-1])):
                words = words_of(tree, names)
                operators = sum(not word.isdigit() for word in words) // language.tokens
                assert roots.length[i] == len(words) + operators * (language.weight - language.tokens) <= 50
                assert parse(words) == (roots.value[i], roots.depth[i] - 1) and not words
                assert lowest <= roots.height[i] <= highest


def twin(name, rng, lowest, highest, share):
    """One tree by the published rules, recursively: (words, height), including trees that are too long."""
    fewest, most = (2, 2) if name == "arithmetic" else (2, 5)

    def join(arguments):
        height = 1 + max(height for _, height in arguments)
        if name == "arithmetic":
            (left, _), (right, _) = arguments
            return ["(", *left, "+*"[rng.integers(2)], *right, ")"], height
        operator = ("[MIN", "[MAX", "[MED", "[SM")[rng.integers(4)]
        return [operator, *(word for words, _ in arguments for word in words), "]"], height

    def grow(room):
        if room == 1 or rng.random() > share:
            return [str(rng.integers(10))], 1
        return join([grow(room - 1) for _ in range(rng.integers(fewest, most + 1))])

    tree = grow(highest)
    while tree[1] < lowest:
        new = [grow(highest - 1) for _ in range(rng.integers(fewest - 1 if most == 2 else 2, most))]
        new.insert(1 if name == "arithmetic" else rng.integers(len(new)), tree)
        tree = join(new)
    return tree


@pytest.mark.parametrize(("name", "lowest", "highest"), [("arithmetic", 4, 5), ("listops", 3, 4)])
def test_sampling_rules(name, lowest, highest):
    """Frequencies of depths, and by depth mean size, place of the deepest part and root operators, equal the twin's."""
    names, parse = PARSERS[name]
    language = languages.listops(0.3, 5) if name == "listops" else languages.arithmetic(0.3)
    rng = np.random.default_rng(0)

    def features(words):
        depth = parse(list(words))[1]
        nesting = np.cumsum([word.startswith(("[", "(")) - word.startswith(("]", ")")) for word in words])
        deepest = np.argmax(nesting) / len(words)
        return depth, len(words), deepest, words[0] in ("[SM", "[MED"), words[-2] in "])"

    twins = []
    for _ in range(2500):
        words, _ = twin(name, rng, lowest, highest, 0.3)
        length = len(words) + (sum(word[0] == "[" for word in words) if name == "listops" else 0)
        if length <= 50:
            twins.append(features(words))
    forest = trees.Forest(language, rng)
    roots = forest.draw(2500, lowest, highest, 50)
    ours = [
        features(words_of(tree, names)) for tree in np.split(forest.write(roots), np.cumsum(roots.size)[:-1].tolist())
    ]
    assert len(ours) == pytest.approx(len(twins), abs=120)
    for depth in range(1, highest):
        left, right = (np.array([f[1:] for f in part if f[0] == depth], float) for part in (twins, ours))
        assert len(left) == pytest.approx(len(right), abs=5 * np.sqrt(2 * len(left) + 1))
        if len(left) > 100:
            spread = np.sqrt((left.var(0) + right.var(0) + 0.01) / min(len(left), len(right)))
            assert (np.abs(left.mean(0) - right.mean(0)) < 5 * spread).all(), (depth, left.mean(0), right.mean(0))


def test_most_tokens():
    """A full expression of the greatest length meets the bound, which is at or near the fact sheet's maximum."""
    assert languages.arithmetic(0.2).most_tokens(50) == 49
    assert languages.listops(0.3, 5).most_tokens(50) == 43
    assert languages.listops(0.3, 5, clean=True).most_tokens(50) == 50
    assert languages.listops(0.3, 5).most_tokens(5) == 4, "[MAX 1 2 ]"


def test_one_operator():
    single = languages.single_operations()
    text = ["".join(words_of(row, languages.ARITHMETIC_TOKENS)) for row in single["tokens"].reshape(200, 5)]
    assert len(set(text)) == 200
    assert [parse_arithmetic([*word])[0] for word in text] == single["values"].tolist()


@pytest.mark.parametrize("name", ["arithmetic", "listops"])
def test_tree_sets(name):
    task = make(name, **SMALL)
    tables = task.tables()
    assert list(tables) == list(task.splits)
    depths = {split: dict(sorted(collections.Counter(r.answers[:, 1].tolist()).items())) for split, r in tables.items()}
    if name == "arithmetic":
        assert depths["train"] == {1: 200, 2: 100, 3: 100, 4: 100, 5: 100}
        assert depths["iid"] == depths["validation"] == {2: 3, 3: 3, 4: 3, 5: 3}
    else:
        assert depths["train"] == {1: 80, 2: 80, 3: 80, 4: 80, 5: 80}
        assert depths["iid"] == depths["validation"] == {1: 3, 2: 3, 3: 2, 4: 2, 5: 2}
    assert depths["deeper_validation"] == {6: 12} and depths["test"] == {7: 6, 8: 6}
    every = [tree for rows in tables.values() for tree in expressions(rows)]
    assert len(set(every)) == len(every), "no expression twice, in any split"
    for rows in tables.values():
        check_rows(name, rows)
        assert rows.inputs.shape[1] <= task.shapes(8)[0]
    again = task.tables()  # from disk
    for split, rows in tables.items():
        np.testing.assert_array_equal(again[split].inputs, rows.inputs)


def test_options_of_trees():
    published = make("arithmetic", **SMALL, disjoint=False).tables()
    assert [len(published[split]) for split in ("train", "validation", "iid")] == [600, 212, 212]
    assert set(expressions(published["iid"])) & set(expressions(published["train"]))
    more = SMALL | {"held_out_size": 200}
    drawn, clean = (make("arithmetic", **more, clean=clean).tables() for clean in (False, True))
    moved = make("arithmetic", **more, data_seed=1).tables()
    for split in ("iid", "test"):
        check_rows("arithmetic", clean[split])
        assert not set(expressions(moved["test"])) & set(expressions(drawn["test"]))

    def deeper_on_the_right(rows):
        parts = [parse_arithmetic(words_of(row, languages.ARITHMETIC_TOKENS)) for row in rows.inputs]
        return np.mean([right > left for _, _, left, right in parts])

    assert deeper_on_the_right(drawn["deeper_validation"]) == pytest.approx(0.88, abs=0.07), "as published"
    assert deeper_on_the_right(drawn["iid"]) == pytest.approx(0.25, abs=0.1)
    assert 0.3 < deeper_on_the_right(clean["deeper_validation"]) < 0.7


def test_trees_that_cannot_be_found(monkeypatch):
    monkeypatch.setattr(trees, "BARREN_BLOCKS", 3)
    wanted = trees.Wanted({2: 201}, 2, 2, 50, (0,))
    with pytest.raises(ValueError, match="201 different trees are too many to be found; got 200"):
        trees.collect(languages.arithmetic(0.5), wanted)


def test_curve_of_trees():
    """Depths 1 .. 12; only depth 1 of arithmetic, all of which is in training, uses training rows."""
    task = make("arithmetic", **SMALL)
    assert task.curve_lengths == tuple(range(1, 13))
    both = briefly(lambda key, lengths: [draw(task, key, lengths, capacity) for capacity in (12, 13)])
    tight, wide = jax.tree.map(np.asarray, both(jax.random.key(0), jnp.arange(1, 13)))
    np.testing.assert_array_equal(tight.inputs, wide.inputs)
    assert task.shapes(8) == (49, 1) and task.shapes(12) == (97, 1)
    train = set(expressions(task.tables()["train"]))
    for depth, (row, mask, target) in enumerate(zip(tight.inputs, tight.input_mask, tight.targets, strict=True), 1):
        value, found, *_ = parse_arithmetic(words_of(row[mask], languages.ARITHMETIC_TOKENS))
        assert (value, found) == (target[0], depth)
        assert (row[mask].astype(np.uint8).tobytes() in train) is (depth == 1)


# ---- batches


def test_permuted():
    sizes = np.repeat([1, 2, 7, 7, 100], [1, 2, 7, 7, 100])
    group = np.repeat(np.arange(5), [1, 2, 7, 7, 100])
    index = np.concatenate([np.arange(size) for size in (1, 2, 7, 7, 100)])
    places = briefly(jax.vmap(lambda key: _permuted(key, *(jnp.asarray(array) for array in (group, index, sizes)))))
    drawn = np.asarray(places(jax.random.split(jax.random.key(0), 30)))
    for number, size in enumerate((1, 2, 7, 7, 100)):
        part = drawn[:, group == number]
        np.testing.assert_array_equal(np.sort(part, axis=1), np.broadcast_to(np.arange(size), part.shape))
        assert len({row.tobytes() for row in part}) >= (1, 2, 28, 28, 30)[number], "another key, another order"
    assert (drawn[:, group == 2] != drawn[:, group == 3]).any(1).sum() >= 28, "another length, another order"


def test_buckets():
    """A pass has each row at most once, in batches that are slices of the rows sorted by length."""
    task = make("arithmetic", **SMALL)
    batches = 600 // 64
    program = briefly(
        lambda seed, steps: jax.vmap(functools.partial(task.source("train", 64).batch, jax.random.key(seed)))(steps)
    )
    stream = jax.tree.map(np.asarray, program(0, jnp.arange(2 * batches)))
    lengths = stream.input_mask.sum(-1)
    known = dict(zip(expressions(task.tables()["train"]), task.tables()["train"].answers[:, 0], strict=True))
    passes = []
    for part in np.split(np.arange(2 * batches), 2):
        rows = [
            row[mask].astype(np.uint8).tobytes()
            for row, mask in zip(
                stream.inputs[part].reshape(-1, 49), stream.input_mask[part].reshape(-1, 49), strict=True
            )
        ]
        assert len(set(rows)) == len(rows) == 64 * batches
        assert [known[row] for row in rows] == stream.targets[part].ravel().tolist()
        order = np.lexsort((lengths[part].max(1), lengths[part].min(1)))
        ends = np.stack([lengths[part].min(1), lengths[part].max(1)], 1)[order]
        assert (ends[:-1, 1] <= ends[1:, 0]).all(), "batches follow one another by length"
        passes.append((rows, order.tolist()))
    assert passes[0][1] != passes[1][1] and set(passes[0][0]) != set(passes[1][0])
    other = program(1, jnp.arange(2 * batches))
    assert not np.array_equal(other.inputs, stream.inputs)
    sizes = lengths.mean(-1), np.asarray(other.input_mask).sum(-1).mean(-1)
    assert np.corrcoef(*sizes)[0, 1] > 0.99, "seeds that are trained together have batches of similar length"
    backwards = program(0, jnp.arange(2 * batches)[::-1])
    jax.tree.map(lambda there, back: np.testing.assert_array_equal(there, back[::-1]), stream, backwards)
    plain = briefly(make("arithmetic", **SMALL, batches="mixed").source("train", 64).batch)(jax.random.key(0), 0)
    assert np.ptp(plain.input_mask.sum(-1)) > 20


def test_balanced_batches_hold_each_depth_alike():
    task = make("ctl", batches="balanced")
    batch = briefly(task.source("train", 2000).batch)(jax.random.key(0), 0)
    depths = np.asarray(batch.input_mask.sum(-1)) - 1
    np.testing.assert_allclose(np.bincount(depths, minlength=6)[1:] / 2000, 0.2, atol=0.05)
    train = task.tables()["train"]

    def pairs(inputs, sizes, labels):
        rows = zip(np.asarray(inputs).tolist(), np.asarray(sizes).tolist(), np.asarray(labels).tolist(), strict=True)
        return {(tuple(row[:size]), label) for row, size, label in rows}

    known = pairs(train.inputs, train.input_lengths, train.answers[:, 0])
    assert pairs(batch.inputs, depths + 1, batch.targets[:, 0]) <= known
    again, other = (briefly(functools.partial(task.source("train", 64).batch, jax.random.key(seed))) for seed in (0, 1))
    assert not np.array_equal(again(0).inputs, again(1).inputs)
    assert not np.array_equal(again(0).inputs, other(0).inputs)


def test_pooled_batches_are_one_balanced_draw_sorted_by_length():
    task = make("arithmetic", **SMALL, batches="balanced", pool=4)
    train = task.tables()["train"]
    depths = dict(zip(expressions(train), train.answers[:, 1].tolist(), strict=True))
    program = briefly(
        lambda seed: jax.vmap(functools.partial(task.source("train", 500).batch, jax.random.key(seed)))(jnp.arange(12))
    )
    one, other = (jax.tree.map(np.asarray, program(seed)) for seed in (0, 1))
    assert not np.array_equal(one.inputs, other.inputs)
    drawn = [row[mask].astype(np.uint8).tobytes() for row, mask in zip(*map(np.concatenate, one[:2]), strict=True)]
    orders = []
    for pool in np.split(np.arange(12), 3):
        rows = [drawn[i] for i in (pool[:, None] * 500 + np.arange(500)).ravel()]
        np.testing.assert_allclose(np.bincount([depths[row] for row in rows])[1:] / 2000, 0.2, atol=0.05)
        lengths, of_other = (stream.input_mask[pool].sum(-1) for stream in (one, other))
        order = np.argsort(lengths.mean(1))
        assert (lengths[order[:-1]].max(1) <= lengths[order[1:]].min(1)).all()
        assert np.array_equal(order, np.argsort(of_other.mean(1))), "seeds have long batches at the same time"
        orders.append(order.tolist())
    assert orders[0] != orders[1] or orders[1] != orders[2]


def test_batches_of_other_splits():
    task = make("arithmetic", **SMALL)
    batch = briefly(task.source("deeper_validation", 6).batch)(jax.random.key(0), 1)
    assert batch.inputs.shape == (6, 49) and batch.targets.shape == (6, 1)
    assert batch.score_mask.all() and batch.target_mask.all()
    outputs = jax.random.normal(jax.random.key(0), (6, 1, 10))
    dirty = batch._replace(inputs=jnp.where(batch.input_mask, batch.inputs, 99))
    loss = briefly(task.loss)
    assert float(loss(outputs, dirty)) == float(loss(outputs, batch))
    with pytest.raises(ValueError, match="fewer than a batch of 700"):
        task.source("train", 700)
    with pytest.raises(ValueError, match="'deeper' is not a split"):
        task.source("deeper", 6)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("ctl", {"order": "sideways"}, "order is 'sideways'"),
        ("ctl", {"batches": "sorted"}, "batches is 'sorted'"),
        ("arithmetic", {"batches": "sorted"}, "batches is 'sorted'"),
        ("ctl", {"validation_depth": 10}, "validation_depth is 10; it must be an integer, from 6 to 9"),
        ("arithmetic", {"held_out_size": 0}, "held_out_size is 0"),
        ("listops", {"max_length": 20}, "max_length is 20"),
    ],
)
def test_impossible_fields(name, fields, message):
    with pytest.raises(ValueError, match=message):
        make(name, **fields)


def test_spec_builds_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("LENMEM_CACHE", str(tmp_path / "unused"))
    for name, vocabulary, classes in (("ctl", 19, 8), ("arithmetic", 14, 10), ("listops", 15, 10)):
        task = make(name)
        assert (task.spec.vocabulary, task.spec.output_size) == (vocabulary, classes)
        assert task.shapes(5)[1] == 1 and task.curve_lengths and task.splits
    assert not (tmp_path / "unused").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["arithmetic", "listops"])
def test_full_sets(name, tmp_path, monkeypatch):
    """Sizes, labels and mean lengths of the fact sheet."""
    monkeypatch.setenv("LENMEM_CACHE", str(tmp_path))
    task = make(name)
    tables = task.tables()
    sizes = dict.fromkeys(tables, 1_000) | {"train": 100_200 if name == "arithmetic" else 1_000_000}
    assert {split: len(rows) for split, rows in tables.items()} == sizes
    held = {tree for split, rows in tables.items() if split != "train" for tree in expressions(rows)}
    train = set(expressions(tables["train"]))
    assert len(held) == 4_000 and len(train) == sizes["train"] and not held & train
    for split, rows in tables.items():
        check_rows(name, rows, every=97 if split == "train" else 3)
        shares = np.bincount(rows.answers[:, 0], minlength=10) / len(rows)
        if split == "train":
            assert shares.max() == pytest.approx(task.spec.chance, abs=0.005)
    mean = {
        split: [rows.input_lengths[rows.answers[:, 1] == depth].mean() for depth in np.unique(rows.answers[:, 1])]
        for split, rows in tables.items()
    }
    if name == "arithmetic":
        overall = [tables[split].input_lengths.mean() for split in ("train", "deeper_validation", "test")]
        np.testing.assert_allclose(overall, [17, 33, 40], atol=1.5)
    else:
        np.testing.assert_allclose(mean["iid"], [11, 18, 24, 29, 32], atol=1.5)
        # there are fewer than 200,000 different short expressions of depth 1
        np.testing.assert_allclose(mean["train"], [15.4, 18, 24, 29, 32], atol=1)
        np.testing.assert_allclose(mean["deeper_validation"], 35, atol=1)
        np.testing.assert_allclose(mean["test"], 36.5, atol=1.5)
    drawn = jax.tree.map(np.asarray, draw(task, jax.random.key(0), jnp.arange(1, 13), 12))
    for depth, (row, mask, target) in enumerate(zip(drawn.inputs, drawn.input_mask, drawn.targets, strict=True), 1):
        assert PARSERS[name][1](words_of(row[mask], PARSERS[name][0])) == (target[0], depth)
