"""Masked text with next-sentence questions, made from Python's help pages.

Nothing here is random between two providers: equal options give equal examples everywhere.
"""

import pydoc_data.topics
import random
import re
from collections import Counter

import torch
from torch import Tensor
from torch.utils.data import Dataset

PAD, CLS, SEP, MASK, UNKNOWN = range(5)
SPECIAL = 5
"""Numbers below this are no words."""
NOT_ASKED = -100
"""torch's own mark for targets that do not count."""
SEED = 42


def read_pages() -> list[list[str]]:
    """Every help page as words and signs, in lower case."""
    pages = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    return [re.findall(r"[a-z]+|[^\sa-z]", page.lower()) for page in pages]


def number_words(pages: list[list[str]], vocabulary: int) -> dict[str, int]:
    """The most frequent words; ties by the alphabet, so that everybody counts alike."""
    counts = Counter(word for page in pages for word in page)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: SPECIAL + rank for rank, word in enumerate(ranked[: vocabulary - SPECIAL])}


class MaskedPages(Dataset[dict[str, Tensor]]):
    """Two pieces of text, some of their words hidden. What were they, and do the pieces belong
    together? Half of the time the second piece follows the first, else it is from anywhere."""

    def __init__(self, examples: int, length: int, vocabulary: int, seed: int = SEED) -> None:
        pages = read_pages()
        words = number_words(pages, vocabulary)
        self.length = length
        self.words = vocabulary
        self.hidden = max(1, length // 8)
        self.pages = [[words.get(word, UNKNOWN) for word in page] for page in pages]
        self.pages = [page for page in self.pages if len(page) > length]
        draw = random.Random(seed)
        self.examples = [self._example(draw) for _ in range(examples)]

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.examples[index]

    def _example(self, draw: random.Random) -> dict[str, Tensor]:
        room = self.length - 3  # [CLS] first [SEP] second [SEP]
        size = draw.randint(room // 3, room // 2)
        page = draw.choice(self.pages)
        start = draw.randrange(len(page) - 2 * size)
        first, second = page[start : start + size], page[start + size : start + 2 * size]
        elsewhere = draw.random() < 0.5
        if elsewhere:
            page = draw.choice(self.pages)
            start = draw.randrange(len(page) - size)
            second = page[start : start + size]
        ids = [CLS, *first, SEP, *second, SEP]
        kinds = [0] * (size + 2) + [1] * (size + 1)
        ids, labels = self._hide(ids, draw)
        missing = self.length - len(ids)
        return {
            "input_ids": torch.tensor(ids + [PAD] * missing),
            "token_type_ids": torch.tensor(kinds + [0] * missing),
            "attention_mask": torch.tensor([1] * len(ids) + [0] * missing),
            "labels": torch.tensor(labels + [NOT_ASKED] * missing),
            "next_sentence_label": torch.tensor(int(elsewhere)),
        }

    def _hide(self, ids: list[int], draw: random.Random) -> tuple[list[int], list[int]]:
        """Of the words asked for, most are masked, some replaced, some left: the model cannot
        know which of those it sees are right."""
        known = [place for place, word in enumerate(ids) if word >= SPECIAL]
        asked = draw.sample(known, min(self.hidden, len(known)))
        shown, labels = list(ids), [NOT_ASKED] * len(ids)
        for place in asked:
            labels[place] = ids[place]
            luck = draw.random()
            if luck < 0.8:
                shown[place] = MASK
            elif luck < 0.9:
                shown[place] = draw.randrange(SPECIAL, self.words)
        return shown, labels
