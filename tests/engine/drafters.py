"""Drafters that know the answers, or anything but: what no output may depend on."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from slipstream_engine.spec.draft import Draft, Key, Subject

Kind = Literal["oracle", "adversary", "cutter", "seldom", "tree", "wild tree"]
KINDS: tuple[Kind, ...] = ("oracle", "adversary", "cutter", "seldom", "tree", "wild tree")


@dataclass
class Scripted:
    """`answers`: what each sample will say, asked once a sample; the same draft whenever asked.

    oracle: right as far as the answer goes, and on past its end. adversary: always wrong.
    cutter: right for some tokens, then wrong. seldom: the cutter, but now and then nothing.
    tree: the right path somewhere among wrong branches. wild tree: any branches at all.
    """

    kind: Kind
    answers: Callable[[Key], Sequence[int]]
    vocabulary: int
    seed: int = 0
    name: str = "scripted"
    features: tuple[int, ...] = ()
    outputs: dict[Key, list[int]] = field(default_factory=dict)

    def start(self, subject: Subject) -> None:
        assert subject.key not in self.outputs
        self.outputs[subject.key] = []

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        return [self._draft(key, budget) for key, budget in asked]

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        output = self.outputs[key]
        output += tokens
        assert output == list(self.answers(key))[: len(output)]

    def stop(self, key: Key, finished: bool) -> None:
        output = self.outputs.pop(key)
        if finished:
            assert output == list(self.answers(key))[: len(output)]

    def _draft(self, key: Key, budget: int) -> Draft:
        done = len(self.outputs[key])
        chance = random.Random(f"{self.seed}:{key}:{done}")
        coming = [*self.answers(key)[done:], *(chance.choices(range(self.vocabulary), k=budget))]
        right = coming[:budget]
        match self.kind:
            case "oracle":
                tokens = right
            case "adversary":
                tokens = [(token + 1 + chance.randrange(3)) % self.vocabulary for token in right]
            case "seldom" if chance.random() < 0.5:
                tokens = []
            case "cutter" | "seldom":
                tokens = right[: chance.randint(0, budget)]
                tokens += chance.choices(range(self.vocabulary), k=budget)
                tokens = tokens[: chance.randint(0, budget)]
            case "tree" | "wild tree":
                return self._tree(right, budget, chance)
        return Draft(tuple(tokens), (), (0.5,) * len(tokens), self.name)

    def _tree(self, right: list[int], budget: int, chance: random.Random) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        tip, depth = -1, 0
        for index in range(budget):
            if self.kind == "tree" and depth < len(right) and chance.random() < 0.5:
                tokens.append(right[depth])
                parents.append(tip)
                tip, depth = index, depth + 1
            else:
                tokens.append(chance.randrange(self.vocabulary))
                parents.append(chance.randint(-1, index - 1))
        return Draft(tuple(tokens), tuple(parents), (0.5,) * len(tokens), self.name)
