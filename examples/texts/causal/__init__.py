"""The causal suite: a tiny Llama that answers prompts with a word, a LoRA adapter for each task."""
