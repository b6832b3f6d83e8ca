"""The tiny base's tokenizer: byte-level BPE with single-digit tokens and a ChatML template."""

from itertools import islice

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from labs_lib.models.tiny_base.text import Chat

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"

# Letters with one leading mark, single digits, runs of punctuation, white space: as Qwen2 splits text, so that
# the target {"final_stock":87} has the same eight tokens under both tokenizers.
PRE_TOKENS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def train_tokenizer(sample: list[Chat], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train on `sample`'s texts; at most `vocabulary` ids, 256 of them single bytes, so that any text encodes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (text for chat in sample for text in (chat.system, "\n", chat.user, chat.answer, "system user assistant"))
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def tokenizer_sample(stream, size: int = 20_000) -> list[Chat]:
    """The first `size` chats of a stream: enough for every word of the two tasks to occur often."""
    return list(islice(stream, size))
