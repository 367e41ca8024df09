"""Text to token ids and back: chat template, tokenizer, detokenizer, stop strings. Must not know HTTP or the mesh."""
