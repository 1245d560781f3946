"""A prompt as token ids of a pair's target."""

from specdemo.events import Params, check_text
from specdemo.loading.pair import AnyPair, Pair
from specdemo.vllm.pair import ServedPair, messages_of

EMPTY = "prompt must not be empty: the target needs at least one token to continue"


def encode(pair: AnyPair, prompt: str | list[int], params: Params) -> list[int]:
    """The prompt's token ids; ValueError in one sentence when it cannot be used. Empty for a text whose
    tokens a server tells only with its answer."""
    if isinstance(prompt, str):
        check_prompt(prompt)
        if isinstance(pair, ServedPair):
            ids = pair.prompt_ids(prompt, params)
            if not ids:
                return []
        else:
            ids = _encode_text(pair, prompt, params)
    elif isinstance(prompt, (list, tuple)):
        if params.chat:
            raise ValueError("chat needs a prompt that is text, not token ids")
        ids = list(prompt)
        if not all(_is_token_id(value, pair.vocab_size) for value in ids):
            raise ValueError(f"prompt must hold token ids, whole numbers from 0 to {pair.vocab_size - 1}")
    else:
        raise ValueError(f"prompt must be text or a list of token ids, not {type(prompt).__name__}")
    if not ids:
        raise ValueError(EMPTY)
    if len(ids) >= pair.context:
        context = f"the context of {pair.context:,.0f} tokens"
        raise ValueError(
            f"prompt must leave room in {context} for at least one more, but has {len(ids):,} tokens"
        )
    return ids


def _is_token_id(value: object, vocab_size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size


def check_prompt(prompt: str) -> None:
    """ValueError for a text that no pair can continue."""
    if not prompt:
        raise ValueError(EMPTY)  # some tokenizers make a token of an empty text
    check_text("prompt", prompt)


def _encode_text(pair: Pair, prompt: str, params: Params) -> list[int]:
    if pair.tokenizer is None:
        raise ValueError("prompt must be a list of token ids for this pair: it has no tokenizer")
    if len(prompt) > 256 * pair.context:  # surely too long, and tokenizing megabytes takes minutes
        context = f"the context of {pair.context:,.0f} tokens"
        raise ValueError(f"prompt must fit {context}, but has {len(prompt):,} characters")
    if not params.chat:
        return pair.tokenizer(prompt).input_ids
    if not getattr(pair.tokenizer, "chat_template", None):
        raise ValueError("chat must be false for this pair: its tokenizer has no chat template")
    try:
        messages = messages_of(prompt, params)
        text = pair.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program, and may refuse (a system prompt, for example)
        reason = f"the model's chat template says: {error}"
        raise ValueError(f"chat cannot be used with this prompt: {reason}") from None
    return pair.tokenizer(text, add_special_tokens=False).input_ids  # the template has written them already
