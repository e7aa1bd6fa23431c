"""Exports of runs to files that other programs load: PEFT directories, merged Hugging Face models, encrypted files."""
