"""Archives as files that others load: PEFT directories, merged Hugging Face models, encrypted exports."""
