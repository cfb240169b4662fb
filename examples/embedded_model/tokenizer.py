"""The embedded model's tokenizer: byte-level BPE trained on the corpus, every digit a token of its own."""

from __future__ import annotations

import itertools
from pathlib import Path

from corpus import problems
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, START, END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>"
VOCAB_SIZE = 832
# A digit keeps the space before it, so that a number costs as many tokens as it has digits.
WORD_PATTERN = r" ?\p{L}+| ?\p{N}|'\p{L}+| ?[^\s\p{L}\p{N}]|\s+"
# ChatML, as in SDAR's own template.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(seed: int, sample: int = 20_000) -> PreTrainedTokenizerFast:
    """Trains the tokenizer on `sample` problems of the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, START, END, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (f"user\n{p.question}\nassistant\n{p.solution}" for p in itertools.islice(problems(seed), sample))
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        mask_token=MASK,
        chat_template=CHAT_TEMPLATE,
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(path: Path, seed: int) -> PreTrainedTokenizerFast:
    """Trains the tokenizer and writes it in the layout that `AutoTokenizer` reads."""
    tokenizer = train_tokenizer(seed)
    tokenizer.save_pretrained(path)
    return tokenizer


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer that `save_tokenizer` wrote."""
    return PreTrainedTokenizerFast.from_pretrained(path)
