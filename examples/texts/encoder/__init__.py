"""The encoder suite: a tiny RoBERTa, a head for each task."""
