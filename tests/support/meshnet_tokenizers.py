"""Small tokenizers of the three kinds that differ in how tokens become text."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers


def byte_level() -> Tokenizer:
    """One token a byte, written in the byte-level alphabet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _with_special(tokenizer)


def byte_fallback() -> Tokenizer:
    """Words with U+2581 for the space, bytes as <0xE4>, as SentencePiece models have them."""
    words = ["<unk>", "\u2581", "\u2581Paris", "\u2581is", "Hi", *"abcdefgh", "\u2581you"]
    vocab = {word: index for index, word in enumerate(words)}
    vocab.update({f"<0x{byte:02X}>": len(words) + byte for byte in range(256)})
    model = models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _with_special(tokenizer)


def _with_special(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(["<s>", "</s>", "<|end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One byte a token, whatever the tokenizer's merges would do."""
    written = _ALPHABET if tokenizer.token_to_id("<0x00>") is None else [f"<0x{byte:02X}>" for byte in range(256)]
    ids = [tokenizer.token_to_id(written[byte]) for byte in data]
    return [id_ for id_ in ids if id_ is not None]


def byte_written(data: bytes) -> list[str]:
    """Each byte as the byte-level alphabet writes it."""
    return [_ALPHABET[byte] for byte in data]


def _alphabet() -> list[str]:
    """Printable bytes as themselves, the others from U+0100 on in order: GPT-2's rule."""
    shown = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = sorted(set(range(256)) - shown)
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


_ALPHABET = _alphabet()
