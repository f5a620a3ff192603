"""Trains a model on a harvest with TRL, without downloading anything.

    ideatree harvest format=sft out=datasets/sft format.min_speedup=0
    ideatree harvest format=preference out=datasets/pairs
    pip install trl
    python examples/train_on_a_harvest.py datasets/sft datasets/pairs

Each folder gets one step of the trainer that fits its columns: `SFTTrainer` for prompts with completions,
`DPOTrainer` for prompts with a chosen and a rejected answer. The model is a random GPT-2 with two layers, and
its tokenizer learns from the harvest, so a step takes seconds on a CPU. To train in earnest, pass the name of
a model instead of `tiny_model(…)`, and remove `max_steps` and `use_cpu`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from datasets import Dataset, load_dataset
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

MOST_TOKENS = 16_384
"""The longest conversation. TRL's default of 1,024 tokens is shorter than most questions."""
END = "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}" + END + "\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def tiny_model(folder: Path, rows: Dataset) -> str:
    """Saves a random model, and a tokenizer trained on the questions, in a folder; returns its name."""
    questions = (message["content"] for prompt in rows["prompt"] for message in prompt)
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(questions, vocab_size=2000, special_tokens=[END], show_progress=False)
    learned.save(str(folder / "learned.json"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "learned.json"), eos_token=END, pad_token=END, chat_template=CHAT_TEMPLATE
    )
    shape = GPT2Config(
        vocab_size=len(tokenizer), n_positions=MOST_TOKENS, n_embd=32, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    GPT2LMHeadModel(shape).save_pretrained(folder)
    return str(folder)


def train(harvested: str) -> dict[str, float]:
    """Trains one step on the rows of a folder; returns the trainer's figures."""
    rows = load_dataset(harvested, split="train")
    kinds = (DPOTrainer, DPOConfig) if "chosen" in rows.column_names else (SFTTrainer, SFTConfig)
    trainer_of, config_of = kinds
    with tempfile.TemporaryDirectory() as scratch:
        config = config_of(
            output_dir=f"{scratch}/trained",
            max_length=MOST_TOKENS,
            max_steps=1,
            per_device_train_batch_size=1,
            logging_steps=1,
            report_to="none",
            use_cpu=True,
            bf16=False,
        )
        trainer = trainer_of(model=tiny_model(Path(scratch), rows), args=config, train_dataset=rows)
        trainer.train()
        return trainer.state.log_history[0]


if __name__ == "__main__":
    for harvested in sys.argv[1:]:
        print(f"{harvested}: {train(harvested)}")  # noqa: T201  (a script's output)
