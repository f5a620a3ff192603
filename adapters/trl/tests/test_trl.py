"""TRL trains against a real reward server on a CPU.

    IDEATREE_PYTHON=PATH_OF_A_PYTHON_WITH_IDEATREE python -m pytest adapters/trl

The model is tiny and random. Each of its words is a whole completion, so that it writes real kernels from
the first step on.
"""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from ideatree_client import RewardClient, RewardError
from ideatree_client.testing import BRIEFLY, PYTHON, RIGHT, ROOT, TASK, WRONG, running_server
from ideatree_trl import KernelRepair, kernel_reward
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

WORDS = {"right": RIGHT, "wrong": WRONG, "rude": "No.", "cut": RIGHT[:300]}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("server")) as address:
        yield address


class Speaker(PreTrainedTokenizerFast):
    """Decodes each word as the completion that it stands for."""

    def decode(self, token_ids: Any, *args: Any, **kwargs: Any) -> Any:
        words = super().decode(token_ids, *args, **kwargs)
        texts = [words] if isinstance(words, str) else words
        spoken = [next((WORDS[word] for word in text.split() if word in WORDS), "") for text in texts]
        return spoken[0] if isinstance(words, str) else spoken


def speaker() -> Speaker:
    names = ["<pad>", "<eos>", "<unk>", *WORDS]
    model = Tokenizer(WordLevel({name: place for place, name in enumerate(names)}, unk_token="<unk>"))
    model.pre_tokenizer = WhitespaceSplit()
    return Speaker(tokenizer_object=model, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def test_ten_steps_of_grpo(url: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = speaker()
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=16, n_embd=16, n_layer=1, n_head=1)
    seen: list[tuple[str, float | None]] = []
    ask = kernel_reward(url, reward="correctness")

    async def reward(completions: list[Any], **columns: Any) -> list[float | None]:
        found = await ask(completions, **columns)
        seen.extend(zip(completions, found, strict=True))
        return found

    trainer = GRPOTrainer(
        model=GPT2LMHeadModel(config),
        reward_funcs=reward,
        processing_class=tokenizer,
        args=GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=10,
            per_device_train_batch_size=8,
            num_generations=8,
            max_completion_length=1,
            learning_rate=0.1,
            beta=0.0,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=Dataset.from_list([{"prompt": "softmax", "request": json.dumps(TASK)}] * 8),
    )
    trainer.train()
    logged = [each["reward"] for each in trainer.state.log_history if "reward" in each]
    assert len(logged) == 10
    assert len(seen) == 80
    assert {text: value for text, value in seen if text in (RIGHT, WRONG)} == {RIGHT: 1.0, WRONG: 0.0}
    assert sum(logged[-3:]) / 3 > sum(logged[:3]) / 3, logged
    assert any("kernels_correct" in name for each in trainer.state.log_history for name in each)
    print("rewards by step:", [round(each, 2) for each in logged])


def test_a_step_has_the_evaluators_verdicts(url: str, tmp_path: Path) -> None:
    rewards = asyncio.run(
        kernel_reward(url, reward="correctness")(list(WORDS.values()), [json.dumps(TASK)] * len(WORDS))
    )
    verdicts = []
    for name in ("right", "wrong"):
        kernel = tmp_path / f"{name}.py"
        kernel.write_text(WORDS[name], encoding="utf-8")
        sizes = [f"problem.sizes.{key}={value}" for key, value in TASK["problem_keys"]["sizes"].items()]
        call = [
            "problem=level1/softmax",
            *sizes,
            f"kernel={kernel}",
            "device=cpu",
            "thorough=false",
            "json=true",
        ]
        done = subprocess.run(
            [PYTHON, "-m", "evaluators.evaluate", *call, *BRIEFLY],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        verdicts.append(json.loads(done.stdout.splitlines()[-1])["status"])
    assert verdicts == ["correct", "incorrect"]
    assert rewards == [1.0, 0.0, 0.0, 0.0]


def test_several_turns(url: str) -> None:
    environment = functools.partial(KernelRepair, url, reward="correctness")()
    assert "submit_kernel" in environment.reset(prompt="softmax", request=json.dumps(TASK))
    assert environment.get_reward() == 0
    assert environment.submit_kernel(WRONG).startswith("incorrect: ")
    assert environment.submit_kernel(RIGHT).startswith("correct: ")
    assert environment.get_reward() == 1
    environment.reset(request=json.dumps(TASK))
    assert environment.get_reward() == 0


def test_errors_are_one_line(url: str) -> None:
    with pytest.raises(RewardError, match="unknown problem level1/softmx"):
        RewardClient(url).verify({"problem": "level1/softmx", "completion": "x"})
    with pytest.raises(RewardError, match="cannot be reached"):
        RewardClient("http://127.0.0.1:9", patience_s=1.0).verify({**TASK, "completion": "x"})
