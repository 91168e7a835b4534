"""Six small text tasks, a tiny RoBERTa fine-tuned on each, a tiny Llama with an adapter for each, without downloads."""
