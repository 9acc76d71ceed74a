"""The real small model through our engine against transformers, token for token (float32)."""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Literal

import httpx
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from slipstream_api.speculator import SpeculatorSpec
from slipstream_cli import install
from slipstream_engine import drafting
from slipstream_engine.batch import Sampled
from slipstream_engine.chat import ChatTemplate
from slipstream_engine.conversation import Message
from slipstream_engine.request import Request, SamplingParams
from slipstream_engine.runner import Runner
from slipstream_engine.scheduler import Scheduler
from slipstream_weights import export, source
from slipstream_weights.checkpoint import TextModel
from tests.engine import local, served

pytestmark = pytest.mark.slow

_NUM_TOKENS = 32
# Where batch shapes change float sums, only places as close as this may differ.
_NEAR_TIE = 1e-5
_TASKS = (
    "Write a Python function that reverses a string.",
    "What does the 'git rebase' command do?",
    "Explain recursion to a beginner in two sentences.",
    "def fibonacci(n):",
    "List three differences between TCP and UDP.",
    "Translate to French: the cat sits on the table.",
    "Fix this code: for i in range(10) print(i)",
    "SELECT name FROM users WHERE",
    "How many bytes are in 3 KiB? 1234567890",
    "Was ist der Unterschied zwischen einem Prozess und einem Thread?",
    "Summarise: Kubernetes schedules containers onto nodes. 🙂",
    "Write a haiku about unit tests.",
    "import numpy as np\n\ndef softmax(x):",
    "Why is the sky blue?",
    "Rename the variable `a` to `total` in: a = a + 1",
    "Write a Dockerfile for a Go service.",
    "What is 17 times 23? Think first.",
    "Give me a regular expression for an IPv4 address.",
    "¿Cómo se dice 'thank you' en japonés?",
    "fn main() {\n    let v = vec![1, 2, 3];\n",
)


@pytest.fixture(scope="module")
def path() -> Path:
    return next(install.sample_folder().glob("*.gguf"))


@pytest.fixture(scope="module")
def reference(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    return model.eval()


@pytest.fixture(scope="module")
def text_model(path: Path) -> TextModel:
    return source.open_checkpoint(path).text_model()


def _prompts(text_model: TextModel) -> list[list[int]]:
    template = ChatTemplate(text_model)
    texts = [template.render([Message(role="user", content=task)]) for task in _TASKS]
    # Some as plain text, so that not every prompt begins alike.
    for index in (3, 7, 12, 19):
        texts[index] = _TASKS[index]
    return [text_model.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


@torch.inference_mode()
def _judge(reference: Any, prompt: list[int], answer: list[int]) -> list[tuple[bool, float]]:
    """For each token of an answer: is it the reference's choice there, and the gap between its two
    best. All true means that greedy decoding by the reference gives this very answer.
    """
    logits = reference(input_ids=torch.tensor([prompt + answer]), use_cache=False).logits[0]
    best = logits[len(prompt) - 1 : -1].topk(2)
    gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
    return list(zip((best.indices[:, 0] == torch.tensor(answer)).tolist(), gaps, strict=True))


def test_greedy_answers_of_twenty_prompts_in_one_batch_equal_the_reference(
    path: Path, reference: Any, text_model: TextModel
) -> None:
    model = local.decoder(path)
    prompts = _prompts(text_model)
    # Chunks of 64 tokens and twelve sequences at once: nothing is computed as the reference does.
    scheduler = Scheduler(local.limits(512, running=20, tokens=64), num_pages=600)
    runner = Runner(model, local.pool(model, 16, 600))
    arrivals = [(i, local.request(str(i), p, _NUM_TOKENS)) for i, p in enumerate(prompts)]
    answers = local.drive(scheduler, runner, arrivals)
    near_ties = 0
    for index, prompt in enumerate(prompts):
        answer = answers[str(index), 0]
        assert len(answer) == _NUM_TOKENS
        for place, (is_best, gap) in enumerate(_judge(reference, prompt, answer)):
            assert is_best or gap < _NEAR_TIE, (_TASKS[index], place, gap)
            near_ties += not is_best
    assert near_ties <= 1
    # And once with the loop that users of transformers call.
    reference.generation_config.eos_token_id = None
    generated = reference.generate(
        torch.tensor([prompts[0]]),
        attention_mask=torch.ones(1, len(prompts[0]), dtype=torch.long),
        max_new_tokens=_NUM_TOKENS,
        do_sample=False,
    )
    assert generated[0, len(prompts[0]) :].tolist() == answers["0", 0]


def test_text_through_the_whole_server_equals_the_reference(
    path: Path, reference: Any, text_model: TextModel, tmp_path: Path
) -> None:
    document = served.config(path) | {"quantization": "none", "threads": None}
    with served.serving(document, tmp_path) as engine, engine.client() as client:
        answers = [_asked(client, task) for task in _TASKS]
    # One after the other: two pools of spinning threads on two cores are far slower.
    near_ties = 0
    for task, answer in zip(_TASKS, answers, strict=True):
        prompt = _rendered(text_model, task)
        assert answer["usage"]["prompt_tokens"] == len(prompt)
        ours = answer["choices"][0]["message"]["content"]
        theirs, nearest = _generate(reference, text_model, prompt)
        if ours != theirs:
            assert nearest < _NEAR_TIE, (task, ours, theirs)
            near_ties += 1
    assert near_ties <= 1


def _asked(client: httpx.Client, task: str) -> Any:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": task}],
        "max_tokens": _NUM_TOKENS,
        "temperature": 0,
    }
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _rendered(text_model: TextModel, task: str) -> list[int]:
    text = ChatTemplate(text_model).render([Message(role="user", content=task)])
    return text_model.tokenizer.encode(text, add_special_tokens=False).ids


@torch.inference_mode()
def _generate(reference: Any, text_model: TextModel, prompt: list[int]) -> tuple[str, float]:
    """The text that `generate` gives, and the smallest gap between its two best on the way."""
    output = reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=_NUM_TOKENS,
        do_sample=False,
        eos_token_id=sorted(text_model.end_tokens),
        output_scores=True,
        return_dict_in_generate=True,
    )
    tokens = output.sequences[0, len(prompt) :].tolist()
    if tokens[-1] in text_model.end_tokens:
        tokens.pop()
    best = torch.cat(output.scores).topk(2).values
    gap = float((best[:, 0] - best[:, 1]).min())
    return text_model.tokenizer.decode(tokens, skip_special_tokens=False), gap


def test_log_probabilities_after_each_prompt_are_within_1e_4_of_the_reference(
    path: Path, reference: Any, text_model: TextModel
) -> None:
    model = local.decoder(path)
    for prompt in _prompts(text_model)[:4]:
        ours = local.last_logits(model, prompt).log_softmax(-1)
        with torch.inference_mode():
            theirs = reference(input_ids=torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        assert float((ours - theirs).abs().max()) < 1e-4


def test_four_bits_stay_near_what_they_stand_for(
    path: Path, text_model: TextModel, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Mean KL from the dequantised model to the packed one as it is served, on real text."""
    dense, packed = local.decoder(path), local.decoder(path, is_packed=True)
    total, count, agreed = 0.0, 0, 0
    for prompt in _prompts(text_model):
        rows = range(len(prompt))
        truth = local.all_logits(dense, prompt, rows).log_softmax(-1)
        ours = local.all_logits(packed, prompt, rows, "bfloat16").log_softmax(-1)
        total += float((truth.exp() * (truth - ours)).sum())
        agreed += int((truth.argmax(-1) == ours.argmax(-1)).sum())
        count += len(prompt)
    record_testsuite_property("kl_nats", total / count)
    print(f"mean KL {total / count:.5f} nats, same choice {agreed / count:.4f}, {count} tokens")
    assert count > 400
    assert 0.0 < total / count < 0.02


_LONG_CONTEXT = 3072
_WORDS = "def return class import numpy list sort the quick brown fox 1 2 { } ( ) == foo bar"
_LONG = {
    "greedy": (1000, SamplingParams(temperature=0.0, num_top_logprobs=3)),
    "seeded": (1400, SamplingParams(temperature=0.8, seed=4, num_top_logprobs=3)),
    "in two": (1900, SamplingParams(temperature=0.9, top_p=0.9, seed=5, num_top_logprobs=3)),
    "longest": (2500, SamplingParams(temperature=0.0, num_top_logprobs=3)),
}


def _long_requests(text_model: TextModel) -> list[Request]:
    """Texts with a common beginning of 700 words, in which phrases come again and again."""
    random = Random(9)
    phrases = [" ".join(random.choices(_WORDS.split(), k=6)) for _ in range(40)]
    shared = " ".join(random.choices(phrases, k=120))
    made = []
    for name, (num_tokens, sampling) in _LONG.items():
        text = shared + " ".join(random.choices(phrases, k=600))
        tokens = text_model.tokenizer.encode(text, add_special_tokens=False).ids[:num_tokens]
        assert len(tokens) == num_tokens
        num_samples = 2 if name == "in two" else 1
        made.append(local.request(name, tokens, 24, sampling, num_samples=num_samples))
    return made


Draws = dict[tuple[str, int], list[Sampled]]


def test_long_prompts_are_answered_to_the_bit_alone_together_chunked_cached_and_drafted(
    path: Path, text_model: TextModel
) -> None:
    model, requests = local.decoder(path, is_packed=True), _long_requests(text_model)
    num_pages = 900

    def answers(
        arrivals: list[tuple[int, Request]],
        tokens: int,
        *,
        prefix_cache: bool = False,
        runs: int = 1,
        method: Literal["none", "auto"] = "none",
    ) -> list[Draws]:
        """What each of several runs over one pool of pages gave."""
        limits = local.limits(_LONG_CONTEXT, tokens=tokens, prefix_cache=prefix_cache)
        runner = Runner(model, local.pool(model, 16, num_pages, dtype="bfloat16"))
        spec = SpeculatorSpec(method=method)
        speculation = drafting.make(spec, runner, limits, time.perf_counter)
        scheduler = Scheduler(limits, num_pages, speculation=speculation)
        told = []
        for _ in range(runs):
            draws = local.drive_to_draws(scheduler, runner, arrivals)
            told.append({key: [one.sampled for one in progress] for key, progress in draws.items()})
        if method != "none":
            outcomes = () if speculation is None else speculation.take_outcomes()
            assert sum(one.num_accepted for one in outcomes) > 10
        return told

    alone: Draws = {}
    for one in requests:
        (draws,) = answers([(0, one)], 4096)
        alone |= draws
    staggered = [(number * 3, one) for number, one in enumerate(requests)]
    backwards = [(0, one) for one in reversed(requests)]
    for name, told in {
        "together": answers(staggered, 512),
        "in small chunks": answers(backwards, 130),
        "from the cache": answers(staggered, 700, prefix_cache=True, runs=2),
        "drafted": answers(backwards, 512, prefix_cache=True, runs=2, method="auto"),
    }.items():
        for run, draws in enumerate(told):
            for key, sampled in draws.items():
                assert sampled == alone[key], (name, run, key)


def test_the_file_and_its_dequantised_export_agree(path: Path, tmp_path: Path) -> None:
    opened = source.open_checkpoint(path)
    folder = tmp_path / "exported"  # an existing folder is never written into
    export.write_folder(opened, folder)
    tokens = list(range(100, 160))
    ours = local.last_logits(local.decoder(path), tokens)
    theirs = local.last_logits(local.decoder(folder), tokens)
    assert torch.equal(ours, theirs)


@pytest.fixture(scope="module")
def their_tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


@given(text=st.one_of(st.text(), st.text(alphabet="ab '\n\t019é東🙂_(){}<|>", max_size=40)))
@example("  leading spaces\n\n\ttabs and 007 numbers 3.14159")
@example("x = {'a': [1, 2, 3]}\r\n# naïve café\u00a0– 東京 🙂🙂")
@example("I'll we've they're don't")
@example("<|im_start|>user\nhi<|im_end|>\n")
def test_the_tokeniser_of_the_file_equals_transformers(
    text_model: TextModel, their_tokenizer: Any, text: str
) -> None:
    ours = text_model.tokenizer.encode(text, add_special_tokens=False).ids
    assert ours == their_tokenizer.encode(text, add_special_tokens=False)


def test_the_chat_prompt_equals_what_transformers_renders(
    text_model: TextModel, their_tokenizer: Any
) -> None:
    conversations = [
        [{"role": "user", "content": "Hi"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?\n"}],
        [
            {"role": "user", "content": "1"},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "3"},
        ],
    ]
    template = ChatTemplate(text_model)
    for conversation in conversations:
        ours = template.render([Message.model_validate(message) for message in conversation])
        theirs = their_tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True
        )
        assert ours == theirs
