"""The data sets that lenmem reads from files: where they are published, and checks of local copies.

Nothing is downloaded. A check reads every file with the reader of the task, so its errors are the same: one line with
the file and the number of the line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from lenmem.catalogue import checks
from lenmem.errors import choices


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A published data set."""

    title: str
    """Its contents, and its authors."""
    site: str
    """The project and the site where it is published, with the name of the archive."""
    licence: str
    """The published licence, or a note that none is stated."""
    expected: tuple[str, ...]
    """The files and their contents."""
    use: str
    """The command and option with which a task reads it."""
    check: Callable[[Path], list[str]]
    """directory -> its contents, as lines of text. Raises ValueError at the first fault."""


def names() -> tuple[str, ...]:
    """The names that `find` accepts."""
    return tuple(DATA_SETS)


def find(name: str) -> DataSet:
    """The data set with this name. Raises ValueError with the nearest name if there is none."""
    if name not in DATA_SETS:
        raise ValueError(f"there is no data set {name!r}.{choices(name, DATA_SETS, listed='lenmem data')}")
    return DATA_SETS[name]


def described(name: str) -> str:
    """The output of `lenmem data NAME`."""
    known = find(name)
    lines = [f"{name}: {known.title}", f"published  {known.site}", f"licence    {known.licence}", "expected"]
    lines += [f"  {line}" for line in known.expected]
    return "\n".join([*lines, f"read by    {known.use}", f"check      lenmem data {name} --directory DIRECTORY"])


def checked(name: str, directory: Path) -> list[str]:
    """The contents of a directory, as lines of text. Raises ValueError at the first file that is missing or wrong."""
    known = find(name)
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory; {name} expects {known.expected[0]}")
    return known.check(directory)


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
        checks.check_babi,
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
        checks.check_multi30k,
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
        checks.check_squad,
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
        checks.check_bert,
    ),
    "scan": DataSet(
        "commands and actions (Lake & Baroni 2018); lenmem also makes them from the grammar, without files",
        "the repository brendenlake/SCAN on github.com: tasks.txt",
        "BSD",
        ("tasks.txt, with 20,910 lines", "IN: jump twice OUT: I_JUMP I_JUMP"),
        "lenmem train panm/scan --task.origin DIRECTORY/tasks.txt",
        checks.check_scan,
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
        checks.check_mathematics,
    ),
    "imdb": DataSet(
        "film reviews in two classes (Maas et al. 2011), for lra_text",
        "the Large Movie Review Dataset of Stanford, ai.stanford.edu/~amaas/data/sentiment: aclImdb_v1.tar.gz",
        "none is stated; its authors ask to be cited",
        ("aclImdb, with train/neg, train/pos, test/neg and test/pos", "12,500 files *.txt in each, a review in each"),
        "lenmem train nam/lra_text --task.origin DIRECTORY",
        checks.check_imdb,
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
        checks.check_cifar10,
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
        checks.check_flare,
    ),
}
"""The data sets by name, in the order of the listing."""
DRAWN = {
    "lra_listops": "trees are generated as in the Long Range Arena, once, and cached; --task.origin reads its files",
    "stories": "stories are generated once, and cached",
    "ctl, arithmetic, listops": "the published draws are repeated, or new examples are generated; both are cached",
    "pairs": "your own file; see docs/own_data.md",
}
"""Tasks with fixed data that need no published files."""
