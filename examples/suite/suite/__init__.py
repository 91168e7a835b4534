"""Eight small image tasks, one tiny CLIP and its eight fine-tuned checkpoints, all made from a seed without a download."""
