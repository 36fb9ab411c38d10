"""The data sets that lenmem reads from files: where they are published, and a check of those that are there.

Nothing is downloaded. A check reads every file with the reader of the task, so it raises the same errors: one line with
the name of the file and the number of the line.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jax

from lenmem.data import babi, cifar10, flare, imdb, mathematics, parallel_text, scan, squad, wordpiece
from lenmem.errors import choices
from lenmem.models import hugging_face
from lenmem.models.bert import Bert
from lenmem.tasks.mathematics import encoded
from lenmem.tasks.scan import check_pairs


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A published data set."""

    title: str
    """What it is, and who made it."""
    site: str
    """The project and the site where it is published, with the name of the archive."""
    licence: str
    """As published; otherwise that none is stated."""
    expected: tuple[str, ...]
    """The files, and what is in them."""
    use: str
    """The option with which a task reads it."""
    check: Callable[[Path], list[str]]
    """directory -> what is there, in lines. Raises ValueError at the first fault."""


def names() -> tuple[str, ...]:
    """The names that `find` accepts."""
    return tuple(DATA_SETS)


def find(name: str) -> DataSet:
    """The data set with this name. Raises ValueError with the nearest name if there is none."""
    if name not in DATA_SETS:
        raise ValueError(f"there is no data set {name!r}.{choices(name, DATA_SETS, listed='lenmem data')}")
    return DATA_SETS[name]


def described(name: str) -> str:
    """What `lenmem data NAME` prints."""
    known = find(name)
    lines = [f"{name}: {known.title}", f"published  {known.site}", f"licence    {known.licence}", "expected"]
    lines += [f"  {line}" for line in known.expected]
    return "\n".join([*lines, f"read by    {known.use}", f"check      lenmem data {name} --directory DIRECTORY"])


def checked(name: str, directory: Path) -> list[str]:
    """What is in a directory, in lines. Raises ValueError at the first file that is missing or wrong."""
    known = find(name)
    if not directory.is_dir():
        raise ValueError(f"{directory} is no directory; {name} expects {known.expected[0]}")
    return known.check(directory)


def _same(path: Path, got: int, wanted: int, what: str) -> None:
    if got != wanted:
        raise ValueError(f"{path} has {got:,} {what}; the published one has {wanted:,}")


def _hash(path: Path, contents: bytes, wanted: str) -> None:
    if hashlib.sha256(contents).hexdigest() != wanted:
        raise ValueError(f"{path} is not the published file: its SHA-256 does not begin with {wanted[:12]}")


def _babi(directory: Path) -> list[str]:
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
"""Reviews of a class and split; bytes of a file of CIFAR-10."""


def _multi30k(directory: Path) -> list[str]:
    lines = []
    for part, wanted in parallel_text.PARTS.items():
        for language in ("en", "de"):
            path = parallel_text.path_of(directory, f"{part}.{language}")
            found = parallel_text.read_lines(path)
            _same(path, len(found), wanted, "lines")
            _hash(path, parallel_text.contents_of(path), MULTI30K[f"{part}.{language}"])
            lines.append(f"{path.name}: {wanted:,} lines, as published; {found[0]}")
    return lines


def _squad(directory: Path) -> list[str]:
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


def _bert(directory: Path) -> list[str]:
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


def _scan(directory: Path) -> list[str]:
    path = directory / "tasks.txt"
    pairs = scan.read_file(path)
    check_pairs(pairs, str(path))
    same = hashlib.sha256(path.read_bytes()).hexdigest() == SCAN
    order = "the published file" if same else "the published pairs in another order or form"
    return [f"tasks.txt: {len(pairs):,} pairs, {order}; {' '.join(pairs[0][0])} -> {' '.join(pairs[0][1])}"]


def _mathematics(directory: Path) -> list[str]:
    lines = []
    for name, module in mathematics.MODULES.items():
        for split, pairs in mathematics.read_release(module, str(directory)).items():
            encoded(pairs, f"{name} {split}")
            lines.append(f"{name} {split}: {len(pairs):,} questions; {pairs[0][0]} -> {pairs[0][1]}")
    return lines


def _imdb(directory: Path) -> list[str]:
    lines = []
    for split in ("train", "test"):
        texts, labels = imdb.read_directory(str(directory), split)
        for label, kind in enumerate(imdb.CLASSES):
            _same(directory / split / kind, labels.count(label), REVIEWS, "files *.txt")
        lines.append(f"{split}: {len(texts):,} reviews, as published; {texts[0][:60].decode(errors='replace')}")
    return lines


def _cifar10(directory: Path) -> list[str]:
    lines = []
    for split, files in cifar10.FILES.items():
        images, labels = cifar10.read_directory(str(directory), split)
        for name in files:
            _same(directory / name, (directory / name).stat().st_size, PICTURE_FILE, "bytes")
        counts = Counter(labels.tolist())
        if set(counts) != set(range(10)):
            raise ValueError(f"{directory} has the classes {sorted(counts)} in {split}; expected 0 to 9")
        lines.append(f"{split}: {len(images):,} pictures of 10 classes, as published; the first has class {labels[0]}")
    return lines


def _flare(directory: Path) -> list[str]:
    lines = []
    for split, folder in flare.SPLITS.items():
        there = directory / folder
        found = flare.read_strings(there, following=(there / "next-symbols.jsonl").exists())
        shown = " ".join(found[0].tokens[:12])
        lines.append(
            f"{split}: {len(found):,} strings, {sum(one.label for one in found):,} of the language; {shown} -> "
            f"{int(found[0].label)}"
        )
    return lines


DATA_SETS = {
    "babi": DataSet(
        "questions about short stories, twenty tasks (Weston et al. 2015)",
        "the bAbI project of Facebook AI Research, research.fb.com/downloads/babi: tasks_1-20_v1-2.tar.gz",
        "Creative Commons Attribution 3.0",
        (
            "a directory of the archive: en, en-10k, en-valid or en-valid-10k",
            "qa1_*_train.txt, qa1_*_test.txt and so on to qa20 (in en-valid*: qa1_train.txt, qa1_valid.txt, ...)",
            "questions of a task: in en 1,000 + 1,000, in en-10k 10,000 + 1,000, in en-valid-10k 9,000 + 1,000 + 1,000",
            "1 Mary moved to the bathroom.",
            "2 Where is Mary?<TAB>bathroom<TAB>1",
        ),
        "lenmem train panm/babi --task.directory DIRECTORY",
        _babi,
    ),
    "multi30k": DataSet(
        "descriptions of pictures in English and German (Elliott et al. 2016)",
        "the repository multi30k/dataset on github.com: data/task1/raw",
        "none is stated in the repository",
        (
            "train, val and test_2016_flickr, each with .en and .de, as they are (.gz) or unpacked",
            "29,000, 1,014 and 1,000 lines, a sentence on each, in the same order in both languages",
        ),
        "lenmem train panm/multi30k --task.directory DIRECTORY",
        _multi30k,
    ),
    "squad": DataSet(
        "questions about paragraphs of Wikipedia, SQuAD 1.1 (Rajpurkar et al. 2016)",
        "the SQuAD explorer, rajpurkar.github.io/SQuAD-explorer: dataset/train-v1.1.json and dataset/dev-v1.1.json",
        "Creative Commons Attribution-ShareAlike 4.0",
        (
            "train-v1.1.json and dev-v1.1.json, of 30,288,272 and 4,854,279 bytes",
            "87,599 and 10,570 questions",
            'data > paragraphs > "context" and "qas" > "id", "question" and "answers" > "answer_start" and "text"',
        ),
        "lenmem train panm/squad_80 --task.directory DIRECTORY; it needs the weights of `lenmem data bert` too",
        _squad,
    ),
    "bert": DataSet(
        "weights and vocabulary of a BERT in Hugging Face's format (Devlin et al. 2019), for squad",
        "the repository google-bert/bert-base-uncased on huggingface.co",
        "Apache 2.0",
        (
            "config.json, model.safetensors and vocab.txt, of 231,508 bytes",
            "bert-base-uncased has 30,522 pieces, 12 layers of width 768 and 108,891,648 parameters that are read",
        ),
        "lenmem train panm/squad_80 --model.weights DIRECTORY --task.vocabulary DIRECTORY",
        _bert,
    ),
    "scan": DataSet(
        "commands and actions (Lake & Baroni 2018); lenmem also makes them from the grammar, without files",
        "the repository brendenlake/SCAN on github.com: tasks.txt",
        "BSD",
        ("tasks.txt, with 20,910 lines", "IN: jump twice OUT: I_JUMP I_JUMP"),
        "lenmem train panm/scan --task.origin DIRECTORY/tasks.txt",
        _scan,
    ),
    "mathematics": DataSet(
        "questions of mathematics (Saxton et al. 2019); lenmem also draws questions of two modules, without files",
        "the repository google-deepmind/mathematics_dataset on github.com links it: mathematics_dataset-v1.0.tar.gz",
        "Apache 2.0 for the generator; none is stated for the files",
        (
            "the unpacked archive, with train-easy, train-medium, train-hard, interpolate and extrapolate",
            "in each arithmetic__add_or_sub.txt and numbers__place_value.txt; in extrapolate both with _big",
            "questions and answers on alternating lines",
        ),
        "lenmem train panm/mathematics --task.origin DIRECTORY",
        _mathematics,
    ),
    "imdb": DataSet(
        "film reviews in two classes (Maas et al. 2011), for lra_text",
        "the Large Movie Review Dataset of Stanford, ai.stanford.edu/~amaas/data/sentiment: aclImdb_v1.tar.gz",
        "none is stated; its authors ask to be cited",
        ("aclImdb, with train/neg, train/pos, test/neg and test/pos", "12,500 files *.txt in each, a review in each"),
        "lenmem train nam/lra_text --task.origin DIRECTORY",
        _imdb,
    ),
    "cifar10": DataSet(
        "small colour pictures in ten classes (Krizhevsky 2009), for lra_image",
        "the CIFAR page of the University of Toronto, www.cs.toronto.edu/~kriz/cifar.html: cifar-10-binary.tar.gz",
        "none is stated; its author asks to be cited",
        (
            "cifar-10-batches-bin, with data_batch_1.bin to data_batch_5.bin and test_batch.bin",
            "30,730,000 bytes in each: 10,000 records of a class and 3,072 values",
        ),
        "lenmem train nam/lra_image --task.origin DIRECTORY",
        _cifar10,
    ),
    "flare": DataSet(
        "strings of formal languages with labels (Butoi et al. 2025)",
        "the repository rycolab/flare on github.com: a directory for each language",
        "none is stated in the repository",
        (
            "the directory of a language, with main.tok and labels.txt, and the same in datasets/validation-short,",
            "datasets/validation-long, datasets/test-short-held-out and datasets/test",
            "for next symbols also next-symbols.jsonl",
        ),
        "lenmem train flare --model NAME --task.directory DIRECTORY",
        _flare,
    ),
}
"""Their names, in the order of the listing."""
DRAWN = {
    "lra_listops": "trees are drawn as in the Long Range Arena, once, and cached; its own files are not read",
    "stories": "stories are drawn once, and cached",
    "ctl, arithmetic, listops": "the published draws are repeated, or new ones are made",
    "pairs": "your own file; see docs/own_data.md",
}
"""Tasks of fixed data that need no published file."""
