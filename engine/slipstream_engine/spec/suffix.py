"""Drafts what followed when the text last ended as it ends now.

What a sequence's text is: the prompt, which all samples of a request share and nobody changes, and
its own output. Each has an automaton. The longer suffix is followed, in the output if both are as
long: that is nearer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream_engine.spec import chances
from slipstream_engine.spec.automaton import Automaton, Trail
from slipstream_engine.spec.draft import NO_DRAFT, Draft, Key, Subject

# 16 ms to read and 8 MB to keep. Of a longer prompt its end: what an agent works on was read last.
MOST_PROMPT_TOKENS = 16_384
# How many tokens are drafted for one that agrees: after a few, more would hardly ever be right, and
# each takes its time.
_PER_MATCH = 8
# Of an output the automaton holds so much at most, and half of it when it must forget.
MOST_OUTPUT_TOKENS = 16_384


@dataclass(slots=True)
class _Prompt:
    tokens: tuple[int, ...]
    automaton: Automaton
    num_samples: int = 0


@dataclass(slots=True)
class _Sequence:
    """`forgotten`: how much of the output's beginning its automaton does not hold."""

    prompt: _Prompt
    in_prompt: Trail
    output: list[int] = field(default_factory=list)
    automaton: Automaton = field(default_factory=Automaton)
    forgotten: int = 0


class SuffixDrafter:
    """A `Drafter`. `most_prompt_tokens`, `most_output_tokens`: what it keeps of each."""

    name = "suffix"
    features: tuple[int, ...] = ()

    def __init__(
        self,
        most_prompt_tokens: int = MOST_PROMPT_TOKENS,
        most_output_tokens: int = MOST_OUTPUT_TOKENS,
    ) -> None:
        self._most_prompt_tokens = most_prompt_tokens
        self._most_output_tokens = most_output_tokens
        self._prompts: dict[str, _Prompt] = {}
        self._sequences: dict[Key, _Sequence] = {}

    def start(self, subject: Subject) -> None:
        prompt = self._prompts.get(subject.key[0])
        if prompt is None:
            tokens = subject.prompt[-self._most_prompt_tokens :]
            prompt = self._prompts[subject.key[0]] = _Prompt(tokens, Automaton(tokens))
        prompt.num_samples += 1
        self._sequences[subject.key] = _Sequence(prompt, prompt.automaton.trail())

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        return [self._draft(self._sequences[key], budget) for key, budget in asked]

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        sequence = self._sequences[key]
        sequence.output += tokens
        sequence.prompt.automaton.follow(sequence.in_prompt, tokens)
        sequence.automaton.grow(tokens)
        if sequence.automaton.num_tokens > self._most_output_tokens:
            kept = sequence.output[-(self._most_output_tokens // 2) :]
            sequence.automaton = Automaton(kept)
            sequence.forgotten = len(sequence.output) - len(kept)

    def stop(self, key: Key, finished: bool) -> None:
        sequence = self._sequences.pop(key, None)
        if sequence is None:
            return
        sequence.prompt.num_samples -= 1
        if sequence.prompt.num_samples == 0:
            del self._prompts[key[0]]

    @staticmethod
    def _draft(sequence: _Sequence, budget: int) -> Draft:
        own, before = sequence.automaton, sequence.in_prompt
        if own.repeated and own.repeated >= before.length:
            length, after = own.repeated, sequence.forgotten + own.repeated_after
            tokens = _on(sequence.output, after, min(budget, _PER_MATCH * length))
        elif before.length:
            length, after = before.length, before.after
            count = min(budget, _PER_MATCH * length)
            tokens = list(sequence.prompt.tokens[after : after + count])
            # The output is what followed the prompt.
            tokens += sequence.output[: count - len(tokens)]
        else:
            return NO_DRAFT
        return Draft(
            tuple(tokens), (), chances.after_match(length, len(tokens)), SuffixDrafter.name
        )


def _on(text: list[int], place: int, count: int) -> list[int]:
    """So many tokens from a place on, as if what lies between it and the end went on and on."""
    tokens = text[place : place + count]
    while len(tokens) < count:
        tokens += tokens[: count - len(tokens)]
    return tokens
