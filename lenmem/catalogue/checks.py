"""Checks of published data sets: directory -> its contents, as lines of text. They raise ValueError at the first
fault."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import jax

from lenmem.data import babi, cifar10, flare, imdb, mathematics, parallel_text, scan, squad, wordpiece
from lenmem.models import hugging_face
from lenmem.models.bert import Bert
from lenmem.tasks.mathematics import encoded
from lenmem.tasks.scan import check_pairs

MULTI30K = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
}
"""SHA-256 of the uncompressed files at commit a3d2e0d of the repository."""
SCAN = "d824c7d9e9149ba497e25f701981dac79954e04bf670d22e5c209f076ac6c89f"
"""SHA-256 of tasks.txt."""
SQUAD = {
    "train-v1.1.json": "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955",
    "dev-v1.1.json": "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
}
"""SHA-256 of the two files, of 30,288,272 and 4,854,279 bytes."""
BERT_BASE = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
"""SHA-256 of the vocab.txt of uncased BERTs in English, of 231,508 bytes."""
REVIEWS, PICTURE_FILE = 12_500, 30_730_000
"""Number of reviews of each class and split; size of each CIFAR-10 file in bytes."""


def _same(path: Path, got: int, wanted: int, what: str) -> None:
    if got != wanted:
        raise ValueError(f"{path} has {got:,} {what}; the published one has {wanted:,}")


def _hash(path: Path, contents: bytes, wanted: str) -> None:
    if hashlib.sha256(contents).hexdigest() != wanted:
        raise ValueError(f"{path} is not the published file: its SHA-256 does not begin with {wanted[:12]}")


def check_babi(directory: Path) -> list[str]:
    """bAbI: the questions of each task and split."""
    published = babi.DIRECTORIES.get(directory.name)
    lines, words, longest = [], set(), 0
    for task in range(1, babi.TASKS + 1):
        files = babi.files_of(directory, task)
        if published and set(files) != set(published):
            raise ValueError(f"{directory} has {', '.join(files)} of task {task}; published are {', '.join(published)}")
        counts = Counter()
        for split, path in files.items():
            found = babi.read_file(path, task)
            counts[split] = len(found)
            if published:
                _same(path, len(found), published[split], "questions")
            words |= {word for one in found for part in (*one.story, one.question, one.answer) for word in part}
            longest = max(longest, *(len(one.story) for one in found))
        first = babi.read_file(files["train"], task)[0]
        lines.append(
            f"task {task}: {', '.join(f'{number:,} {split}' for split, number in counts.items())}; "
            f"{' '.join(first.story[-1])} {' '.join(first.question)} -> {' '.join(first.answer)}"
        )
    known = "as published" if published else f"{directory.name} is not a published name, so numbers are not compared"
    return [*lines, f"{len(words)} words, stories of up to {longest} sentences; {known}"]


def check_multi30k(directory: Path) -> list[str]:
    """Multi30k: the lines of each file."""
    lines = []
    for part, wanted in parallel_text.PARTS.items():
        for language in ("en", "de"):
            path = parallel_text.path_of(directory, f"{part}.{language}")
            found = parallel_text.read_lines(path)
            _same(path, len(found), wanted, "lines")
            _hash(path, parallel_text.contents_of(path), MULTI30K[f"{part}.{language}"])
            lines.append(f"{path.name}: {wanted:,} lines, as published; {found[0]}")
    return lines


def check_squad(directory: Path) -> list[str]:
    """SQuAD 1.1: the questions of each file."""
    lines = []
    for name, wanted in squad.FILES.items():
        path = directory / name
        found = squad.read_file(path)
        _same(path, len(found), wanted, "questions")
        _hash(path, path.read_bytes(), SQUAD[name])
        first = found[0]
        lines.append(
            f"{name}: {wanted:,} questions about {len({one.context for one in found}):,} paragraphs, as published; "
            f"{first.question} -> {first.answers[0][1]}"
        )
    return lines


def check_bert(directory: Path) -> list[str]:
    """Weights of BERT: the vocabulary, the sizes, and the options for these sizes."""
    pieces = wordpiece.read(directory / wordpiece.FILE)
    known = hashlib.sha256((directory / wordpiece.FILE).read_bytes()).hexdigest() == BERT_BASE
    fields = hugging_face.fields_in(directory)
    model = Bert(hugging_face.rows_in(directory), **fields)
    if len(pieces) > model.vocabulary:
        raise ValueError(f"{directory / wordpiece.FILE} has {len(pieces):,} pieces, the network {model.vocabulary:,}")
    params = hugging_face.read(directory, model)
    sizes = " ".join(
        f"--model.{name.replace('_', '-')} {value}" for name, value in fields.items() if value != getattr(Bert, name)
    )
    options = f"{sizes} --task.vocabulary-size {model.vocabulary} --task.separator {pieces.index('[SEP]')}".strip()
    return [
        f"vocab.txt: {len(pieces):,} pieces, {'those of uncased BERTs in English' if known else 'another vocabulary'}",
        f"model.safetensors: {sum(x.size for x in jax.tree.leaves(params)):,} parameters are read, "
        f"{model.layers} layers of width {model.hidden_size}",
        f"options for these sizes: {options}",
    ]


def check_scan(directory: Path) -> list[str]:
    """SCAN: its pairs."""
    path = directory / "tasks.txt"
    pairs = scan.read_file(path)
    check_pairs(pairs, str(path))
    same = hashlib.sha256(path.read_bytes()).hexdigest() == SCAN
    order = "the published file" if same else "the published pairs in another order or form"
    return [f"tasks.txt: {len(pairs):,} pairs, {order}; {' '.join(pairs[0][0])} -> {' '.join(pairs[0][1])}"]


def check_mathematics(directory: Path) -> list[str]:
    """The mathematics data set: the questions of each module and split."""
    lines = []
    for name, module in mathematics.MODULES.items():
        for split, pairs in mathematics.read_release(module, str(directory)).items():
            encoded(pairs, f"{name} {split}")
            lines.append(f"{name} {split}: {len(pairs):,} questions; {pairs[0][0]} -> {pairs[0][1]}")
    return lines


def check_imdb(directory: Path) -> list[str]:
    """IMDb: the reviews of each split."""
    lines = []
    for split in ("train", "test"):
        texts, labels = imdb.read_directory(str(directory), split)
        for label, kind in enumerate(imdb.CLASSES):
            _same(directory / split / kind, labels.count(label), REVIEWS, "files *.txt")
        lines.append(f"{split}: {len(texts):,} reviews, as many as published; {texts[0][:60].decode(errors='replace')}")
    return lines


def check_cifar10(directory: Path) -> list[str]:
    """CIFAR-10: the pictures of each split."""
    lines = []
    for split, files in cifar10.FILES.items():
        images, labels = cifar10.read_directory(str(directory), split)
        for name in files:
            _same(directory / name, (directory / name).stat().st_size, PICTURE_FILE, "bytes")
        counts = Counter(labels.tolist())
        if set(counts) != set(range(10)):
            raise ValueError(f"{directory} has the classes {sorted(counts)} in {split}; expected 0 to 9")
        lines.append(f"{split}: {len(images):,} pictures, as many as published, of 10 classes; the first: {labels[0]}")
    return lines


def check_flare(directory: Path) -> list[str]:
    """FLaRe: the strings of each split."""
    lines = []
    for split, folder in flare.folders_of(directory).items():
        found = flare.read_strings(folder, following=(folder / "next-symbols.jsonl").exists())
        shown = " ".join(found[0].tokens[:12])
        lines.append(
            f"{split}: {len(found):,} strings, {sum(one.label for one in found):,} of the language; {shown} -> "
            f"{int(found[0].label)}"
        )
    return lines
