"""The real small model under forms, through the official client: what it says makes sense too."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from slipstream_cli import install
from tests.engine import served

pytestmark = pytest.mark.slow


class Person(BaseModel):
    name: str
    age: int


class Review(BaseModel):
    sentiment: Literal["positive", "negative"]
    reasons: list[str]


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    path = next(install.sample_folder().glob("*.gguf"))
    folder: Path = tmp_path_factory.mktemp("guided")
    with (
        served.serving(served.config(path), folder) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="unused", max_retries=0) as made,
    ):
        yield made


def _messages(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_the_model_fills_in_a_schema_with_what_it_was_told(official: openai.OpenAI) -> None:
    completion = official.chat.completions.parse(
        model="tiny",
        messages=_messages("Maria is 34 years old. Write her name and age as JSON."),
        response_format=Person,
        temperature=0,
        max_tokens=200,
    )
    assert completion.choices[0].message.parsed == Person(name="Maria", age=34)
    assert completion.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("seed", range(4))
def test_samples_of_a_list_and_a_choice_are_parsed(official: openai.OpenAI, seed: int) -> None:
    completion = official.chat.completions.parse(
        model="tiny",
        messages=_messages("The food was cold and the waiter was rude. Judge this review in JSON."),
        response_format=Review,
        temperature=0.7,
        seed=seed,
        n=2,
        max_tokens=700,
    )
    for choice in completion.choices:
        # A list that never ends is cut by the limit, and told so; else it is parsed.
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, Review)


def test_choices_and_expressions_are_answered_in_their_form(official: openai.OpenAI) -> None:
    def answer(text: str, **form: Any) -> str:
        completion = official.chat.completions.create(
            model="tiny",
            messages=_messages(text),
            temperature=0,
            max_tokens=60,
            extra_body={"structured_outputs": form},
        )
        assert completion.choices[0].finish_reason == "stop"
        return completion.choices[0].message.content or ""

    cities = ["Berlin", "Paris", "Rome"]
    question = "Answer with one word. The capital of France is the city of"
    assert answer(question, choice=cities) in cities
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", answer("Give me a date.", regex=r"\d{4}-\d{2}-\d{2}"))
