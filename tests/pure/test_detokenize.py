"""Pieces: whatever the tokenizer and whatever the tokens, the pieces join to the decoded whole, and no half
character shows."""

import random
from itertools import accumulate
from string import ascii_letters

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specdemo.engine.emit import INCOMPLETE, Pieces

TEXT = """Once upon a time, there was a naïve little café — "closed", said the sign. It's 3.14 or 10,000!
Il était une fois; es war einmal; жили-были дед да баба; 从前有一座山，山里有一座庙。 むかしむかし 옛날 옛적에
العربية עברית हिन्दी 🙂🙃 👩‍👩‍👧‍👦 🇩🇪 e\u0301 \u00a0 \u3000 \u200b
\tdef f(x):  return x   # two  spaces, a tab

don't won't I'm they've .. , ? ! ' s
""".splitlines(keepends=True)
SPECIAL = ["<s>", "</s>", "<|im_start|>"]


def wrapped(tokenizer):
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", additional_special_tokens=SPECIAL[2:]
    )


def trained(tokenizer, trainer, *unknown, **options):
    special = [*unknown, *SPECIAL]
    tokenizer.train_from_iterator(TEXT, trainer(special_tokens=special, show_progress=False, **options))
    return wrapped(tokenizer)


def byte_level(vocab_size, add_prefix_space=False):
    """As GPT-2, Llama 3 and Qwen have it. With 256 + 3 tokens every byte is one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(tokenizer, trainers.BpeTrainer, vocab_size=vocab_size, initial_alphabet=alphabet)


def sentencepiece_like():
    """As Llama 2 and Gemma have it: ▁ for a space, one swallowed at the start, bytes for what is unknown."""
    words = sorted(set(TEXT[0].split()))
    pieces = dict.fromkeys(("<unk>", *SPECIAL), 0.0) | {f"<0x{byte:02X}>": -20.0 for byte in range(256)}
    pieces |= {piece: -5.0 for word in words for piece in ("▁" + word, word)}
    pieces |= {"▁": -3.0, "▁▁": -4.0, "é": -6.0, "山": -6.0}
    pieces |= {letter: -9.0 for letter in f"{ascii_letters}.,'!?" if letter not in pieces}
    tokenizer = Tokenizer(models.Unigram(list(pieces.items()), unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return wrapped(tokenizer)


def metaspace():
    """As T5 and XLM-R have it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return trained(tokenizer, trainers.BpeTrainer, "<unk>", vocab_size=300)


def word_piece():
    """As BERT has it: ## goes on with a word, and the decoder moves punctuation to the word before."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return trained(tokenizer, trainers.WordPieceTrainer, "[UNK]", vocab_size=300)


KINDS = {
    "byte level": lambda: byte_level(400),
    "single bytes": lambda: byte_level(259),
    "byte level with a prefix space": lambda: byte_level(400, add_prefix_space=True),
    "sentencepiece": sentencepiece_like,
    "metaspace": metaspace,
    "word pieces": word_piece,
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return KINDS[request.param]()


def decoded(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def pieces_of(tokenizer, ids):
    pieces = Pieces(tokenizer)
    return [pieces.push(token_id) for token_id in ids] + [pieces.flush()]


def test_pieces_of_texts_join_to_the_text(tokenizer):
    replaced = f"a{INCOMPLETE}b{INCOMPLETE}"  # a text may really hold it
    for text in ["".join(TEXT), replaced, *(line[i:] for line in TEXT for i in range(0, len(line), 20))]:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        pieces = pieces_of(tokenizer, ids)
        assert "".join(pieces) == decoded(tokenizer, ids)
        if INCOMPLETE not in decoded(tokenizer, ids):
            assert not any(INCOMPLETE in piece for piece in pieces) and pieces[-1] == ""


def test_pieces_of_random_ids_join_to_the_decoded_whole(tokenizer):
    """Models write nonsense, too: halves that nothing completes, spaces alone, special tokens anywhere."""
    dice = random.Random(1)
    known = sorted(tokenizer.get_vocab().values())
    special = tokenizer.convert_tokens_to_ids(SPECIAL)
    for _ in range(100):
        ids = [dice.choice(special if dice.random() < 0.15 else known) for _ in range(dice.randrange(1, 25))]
        if "<0x00>" in tokenizer.get_vocab():
            ids = without_broken_bytes(tokenizer, ids)
        assert "".join(pieces_of(tokenizer, ids)) == decoded(tokenizer, ids), ids


def without_broken_bytes(tokenizer, ids):
    """Byte tokens next to each other are decoded all or none: a broken one takes back the letters before it,
    which a stream has shown already. So whole characters stand in for single bytes here; the next test breaks
    them."""
    first = tokenizer.convert_tokens_to_ids("<0x00>")
    whole = [first + byte for byte in "é山🙂".encode()]
    return [one for token_id in ids for one in (whole if first <= token_id < first + 256 else [token_id])]


def test_broken_bytes_of_sentencepiece_take_nothing_back():
    """The one place where the pieces cannot join to the decoded whole, which is two U+FFFD here."""
    tokenizer = sentencepiece_like()
    first = tokenizer.convert_tokens_to_ids("<0x00>")
    letter, half, b = first + ord("a"), first + 0xF0, tokenizer.convert_tokens_to_ids("b")
    assert decoded(tokenizer, [letter, half]) == 2 * INCOMPLETE
    assert pieces_of(tokenizer, [letter, half]) == ["a", "", INCOMPLETE]
    assert pieces_of(tokenizer, [letter, half, b]) == ["a", "", INCOMPLETE + "b", ""]


def previews(pieces, ids):
    """Of each of these tokens after those before it."""
    after = accumulate(ids, lambda before, token_id: before[1].preview(token_id), initial=("", pieces))
    return [text for text, _ in after][1:]


def test_a_split_character_belongs_to_the_token_that_completes_it():
    tokenizer = byte_level(259)
    ids = tokenizer("é山🙂", add_special_tokens=False).input_ids
    assert len(ids) == 2 + 3 + 4
    assert pieces_of(tokenizer, ids) == ["", "é", "", "", "山", "", "", "", "🙂", ""]
    assert pieces_of(tokenizer, ids[:-1])[-1] == INCOMPLETE, "nothing completes it: it shows at the end"
    pieces = Pieces(tokenizer)
    ids = tokenizer("é!🙂", add_special_tokens=False).input_ids
    halves = [INCOMPLETE, "é", "!", INCOMPLETE, INCOMPLETE, INCOMPLETE, "🙂"]
    assert previews(pieces, ids) == halves, "a rejected token needs a text, and half a character has no other"
    pieces.push(ids[0])
    assert previews(pieces, ids[1:3]) == ["é", "!"], "the first half stands in the text already"
    without = Pieces(None)
    assert [without.push(1), without.flush()] == ["", ""]


def test_a_preview_is_what_would_come_and_changes_nothing(tokenizer):
    dice = random.Random(3)
    ids = tokenizer("".join(TEXT[:2]), add_special_tokens=False).input_ids
    for _ in range(10):
        cut = dice.randrange(len(ids))
        pieces, undisturbed = Pieces(tokenizer), Pieces(tokenizer)
        for token_id in ids[:cut]:
            assert pieces.push(token_id) == undisturbed.push(token_id)
        shown = previews(pieces, ids[cut : cut + 5])
        assert shown == previews(pieces, ids[cut : cut + 5])
        coming = [undisturbed.push(token_id) for token_id in ids[cut : cut + 5]]
        assert [text.replace(INCOMPLETE, "") for text in shown] == coming
        assert [pieces.push(token_id) for token_id in ids[cut : cut + 5]] == coming


def awkward(tokenizer) -> dict[str, list[int]]:
    """Tokens that a hostile file can repeat for ever: without text, of spaces alone, of half characters."""
    known = tokenizer.get_vocab()
    kinds = {"special": [tokenizer.eos_token_id], "no token": [10**6]}
    if "▁" in known:
        kinds |= {"space": [known["▁"]], "space and special": [known["▁"], tokenizer.eos_token_id]}
    if "<0x00>" in known:
        first = known["<0x00>"]
        kinds |= {"first byte": [first + 0xF0], "middle byte": [first + 0x9F]}
    ids = tokenizer("🙂", add_special_tokens=False).input_ids
    if len(ids) == 4 and "<0x00>" not in known:  # each byte is a token
        kinds |= {"first byte": ids[:1], "middle byte": ids[1:2], "shifted": [*ids[1:], ids[0]]}
        kinds["half and special"] = [ids[0], tokenizer.eos_token_id]
    return kinds


def test_long_texts_stay_cheap(tokenizer):
    """Each token decodes a short window, not the text so far."""
    tokens = {"text": tokenizer("".join(TEXT), add_special_tokens=False).input_ids}
    tokens |= {kind: ids * (200 // len(ids)) for kind, ids in awkward(tokenizer).items()}
    for kind, ids in tokens.items():
        pieces, text, longest = Pieces(tokenizer), "", 0
        for token_id in ids:
            text += pieces.push(token_id)
            longest = max(longest, len(pieces.window))
        assert longest < 40, kind
        assert text + pieces.flush() == decoded(tokenizer, ids), kind
