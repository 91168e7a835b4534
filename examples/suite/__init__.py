"""Eight small image tasks, one tiny CLIP and its eight fine-tuned checkpoints, made from a seed without downloads."""
