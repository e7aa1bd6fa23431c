"""Merged models as GGUF files, which llama.cpp reads: metadata, tensors and tokenizer. Knows no command line.

The package ``gguf`` of llama.cpp writes the format, names the tensors and quantises. What it leaves to llama.cpp's own
converter is here: the order of rows that are rotated, sums of norms, and the names of pre-tokenizers.
"""
