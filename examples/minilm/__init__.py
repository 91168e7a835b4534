"""The suite `minilm`: all-MiniLM-L6-v2, fine-tuned on six tasks of real texts."""
